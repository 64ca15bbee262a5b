"""`python -m properties sensitivity`: which planted faults the suite finds, and how soon.

Each fault is planted in the kernel and met by a run of its own, as `pytest properties` makes it but
deterministic, that ends at the first failure.  What is counted of it starts where the first test
does: the cases and the CPU time until a property failed, without the reduction that follows.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
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

_SUITE = pathlib.Path(properties.__file__).parent

# Ten times what a run takes that finds nothing.
_HANGS_AFTER = 1200

_PASSED, _FAILED = 0, 1


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
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        yield from workers.map(plant, names)


def plant(fault: str) -> Outcome:
    """Runs the suite on the kernel with one fault, in a process of its own.

    Raises ValueError, with the last of what it said, if the suite could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", str(_SUITE), "-x", "-q", "-n0"]
        command += ["-p", "no:cacheprovider", "--hypothesis-profile=ci"]
        command += [f"--target={catalogue.target_name(fault)}", f"--report-json={written}"]
        try:
            done = subprocess.run(
                command, cwd=_SUITE.parent, capture_output=True, text=True, timeout=_HANGS_AFTER
            )
        except subprocess.TimeoutExpired:
            return Outcome(fault, "a run without end", 0, float(_HANGS_AFTER))
        if done.returncode < 0:
            return Outcome(fault, f"the process, ended by signal {-done.returncode}", 0, 0.0)
        if done.returncode not in (_PASSED, _FAILED) or not written.exists():
            raise ValueError(f"fault {fault!r}: {(done.stderr or done.stdout)[-500:]}")
        return _outcome(fault, json.loads(written.read_text(encoding="utf-8")))


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
        line(each) + (f"\n    {json.dumps(each.case)}" if each.case else "")
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
            each.fault: {"says": catalogue.FAULTS[each.fault].says}
            | {name: value for name, value in asdict(each).items() if name != "fault"}
            for each in outcomes
        },
    }
