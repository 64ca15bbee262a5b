"""`python -m properties sensitivity`: which planted faults the suite finds, and how soon.

Each fault is planted in the kernel and met by a run of its own, as `pytest properties` makes it but
deterministic, that ends at the first failure.  What is counted of it starts where the first test
does: the cases and the CPU time until a property failed, without the reduction that follows.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import properties
from properties import environment
from properties.faults import catalogue
from properties.session.reporter import EXPLANATIONS

_SUITE = pathlib.Path(properties.__file__).parent

# Ten times what a run takes that finds nothing.
_HANGS_AFTER = 1200

_PASSED, _FAILED = 0, 1

# Each process is forked off one that has imported everything and run nothing.
_FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: `killed_by` names the property that failed first, None if none."""

    fault: str
    killed_by: str | None
    cases: int
    cpu_seconds: float
    worst_ratio: float | str | None = None
    message: str = ""
    case: dict[str, Any] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fault", metavar="NAME", help="this one alone (default: all, in turn)")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the table as data")


def command(options: argparse.Namespace) -> int:
    """Returns 0 if every fault was killed, 1 if one survived. Raises ValueError for bad options."""
    names = list(catalogue.FAULTS)
    if options.fault is not None:
        if options.fault not in catalogue.FAULTS:
            close = ", ".join(get_close_matches(options.fault, names)) or "see the command list"
            raise ValueError(f"fault {options.fault!r} is not known; close to it: {close}")
        names = [options.fault]
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ValueError(f"--json {options.json}: its folder does not exist")
    outcomes = []
    for outcome in run(names):
        outcomes.append(outcome)
        print(f"{len(outcomes)} of {len(names)}  {line(outcome)}", file=sys.stderr, flush=True)
    print("\n".join(table(outcomes)))
    if options.json is not None:
        options.json.write_text(f"{json.dumps(record(outcomes), indent=1)}\n", encoding="utf-8")
    return 1 if any(outcome.killed_by is None for outcome in outcomes) else 0


def run(names: Iterable[str]) -> Iterable[Outcome]:
    """The outcomes of planting each fault, in order; as many at a time as there are cores."""
    _FORKS.set_forkserver_preload(["properties.commands.warm"])
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        yield from workers.map(plant, names)


def plant(fault: str) -> Outcome:
    """Runs the suite on the kernel with one fault, in a process of its own.

    Raises ValueError, with the last of what it said, if the suite could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        written, said = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "said"
        said.touch()
        arguments = [str(_SUITE), "-x", "-q", "-n0", "-pno:cacheprovider"]
        arguments += [f"-pno:{EXPLANATIONS}", "--hypothesis-profile=ci"]
        arguments += [f"--target={catalogue.target_name(fault)}", f"--report-json={written}"]
        process = _FORKS.Process(target=_run_suite, args=(arguments, _SUITE.parent, said))
        process.start()
        process.join(_HANGS_AFTER)
        if process.exitcode is None:
            process.kill()
            process.join()
            return _unknown(fault, f"had not ended after {_HANGS_AFTER} s")
        if process.exitcode < 0:
            return _unknown(fault, f"was ended by signal {-process.exitcode}")
        if process.exitcode not in (_PASSED, _FAILED) or not written.exists():
            raise ValueError(f"fault {fault!r}: {said.read_text(encoding='utf-8')[-500:]}")
        return _outcome(fault, json.loads(written.read_text(encoding="utf-8")))


def _run_suite(arguments: list[str], root: pathlib.Path, said: pathlib.Path) -> None:
    """Ends the process with pytest's exit code; what pytest prints is written to `said`."""
    import pytest  # here: no other command needs it

    os.chdir(root)
    # A job of GitHub's is not to be told of failures that are wanted.
    for name in [name for name in os.environ if name.startswith("GITHUB_")]:
        del os.environ[name]
    with said.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
        code = pytest.main(arguments)
    sys.exit(int(code))


def _unknown(fault: str, what: str) -> Outcome:
    """No property failed, so that the fault counts as a survivor: a run may end from outside."""
    return Outcome(fault, None, 0, 0.0, message=f"its run {what}")


def _outcome(fault: str, report: dict[str, Any]) -> Outcome:
    first = report["first_failure"]
    if first is None:
        return Outcome(fault, None, report["cases"], report["cpu_seconds"])
    verdict = report["failures"][0]["verdict"]
    return Outcome(
        fault,
        first["property"],
        first["cases"],
        first["cpu_seconds"],
        verdict["ratio"],
        f"{verdict['output']} {verdict['message']}",
        report["failures"][0]["case"],
    )


def line(outcome: Outcome) -> str:
    """One outcome, without its case."""
    head = f"{outcome.fault:41} {outcome.killed_by or 'SURVIVED':32}"
    ratio = outcome.worst_ratio
    shown = f"{ratio:.1e}" if isinstance(ratio, float) else ratio or "-"
    return f"{head} {outcome.cases:6} cases {outcome.cpu_seconds:7.1f} s {shown:>8}"


def table(outcomes: list[Outcome]) -> list[str]:
    """All outcomes, survivors first, then what took longest; the last line counts them."""
    killed = [each for each in outcomes if each.killed_by is not None]
    lines = [
        line(each)
        + (f"\n    {json.dumps(each.case)}" if each.case else "")
        + (f"\n    {each.message}" if each.message and not each.killed_by else "")
        for each in sorted(outcomes, key=lambda each: (each.killed_by is not None, -each.cases))
    ]
    total = f"{len(killed)} of {len(outcomes)} faults killed"
    if killed:
        seconds = [each.cpu_seconds for each in killed]
        cases = [each.cases for each in killed]
        total += (
            f"; median {statistics.median(seconds):.1f} CPU-s and {statistics.median(cases):.0f} "
            f"cases, worst {max(seconds):.1f} CPU-s and {max(cases)} cases"
        )
    return [*lines, total]


def record(outcomes: list[Outcome]) -> dict[str, Any]:
    """The table as data, schema 1, to compare with another of its kind."""
    return {
        "schema": 1,
        "environment": environment.versions(),
        "faults": {
            each.fault: {
                "says": catalogue.FAULTS[each.fault].says,
                "source": catalogue.FAULTS[each.fault].source,
            }
            | {name: value for name, value in asdict(each).items() if name != "fault"}
            for each in outcomes
        },
    }
