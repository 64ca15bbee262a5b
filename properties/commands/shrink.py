"""A reported failure, reduced to the smallest case that fails in the same way."""

import argparse
import pathlib
import tempfile

from properties import engines
from properties.cases.case import Case
from properties.commands import reading, replay
from properties.judging.result import CHIP
from properties.session import failure
from properties.shrinking import telling, writing
from properties.shrinking.reducing import Step, reduce
from properties.shrinking.trials import Trials

HOLDS, FAILS = 0, 1  # exit codes


def command(options: argparse.Namespace) -> int:
    """Reduces `options.source` and writes what is found to `options.out`; returns the exit code.

    Raises ValueError for what cannot be read, run or written.
    """
    request = reading.read(options.source)
    if request.target not in (None, options.target):
        print(f"reported for {replay.named(request.target)}, run on {options.target}")
    mode = options.mode or request.mode or "auto"
    if mode == CHIP and not engines.tpu_attached():
        raise ValueError("mode tpu: no TPU is attached to this machine; give another --mode")
    properties = replay.properties_of(request.property, request.case)
    masked_rows = options.masked_rows or request.masked_rows
    wanted = request.signature
    print(f"reported: {telling.shape(request.case)}{f', {wanted}' if wanted else ''}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Trials(properties, options.target, mode, masked_rows) as fails,
    ):
        reduced = reduce(
            request.case,
            fails,
            property=properties[0],
            wanted=wanted,
            folder=pathlib.Path(folder),
            progress=_print_step,
            waiting=_print_waiting,
        )
        if reduced.case is None:
            print(f"does not fail here, in {reduced.runs} runs")
            return HOLDS
        report = fails.reports[reduced.case]
        written = writing.write(report, reduced, options.out)
    print(f"{reduced.runs} runs in {reduced.seconds:.1f} s", end="")
    print("" if reduced.complete else ", stopped at the limit before its end")
    print("\n".join(telling.explanation(reduced)))
    print(failure.text(report))
    print(f"written: {', '.join(map(str, written))}")
    return FAILS


def _print_step(step: Step) -> None:
    print(telling.step(step), flush=True)


def _print_waiting(what: str, case: Case) -> None:
    print(f"{'':15}{telling.shape(case):30} nothing smaller fails; runs {what}", flush=True)
