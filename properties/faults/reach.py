"""Which statements of the kernel a trial runs: a mutant of another one cannot fail it.

This is what makes hundreds of mutants cheap.  A rule of the contract has a few trials that break
it, a branch for causal calls only those that are causal.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from properties.faults.mutants import Mutant
from properties.faults.planting import PACKAGE, planted_package
from properties.faults.trials import Trial

Lines = frozenset[tuple[str, int]]
"""Lines that were run, as the module of the kernel and the number."""


def at_import() -> Lines:
    """The lines that importing the kernel runs: whatever is made of them, every trial uses."""
    with _recorded() as lines:
        planted_package({})
    return frozenset(lines)


def of(trial: Trial) -> tuple[Lines, str]:
    """The lines that a trial runs of the kernel as it is, and what fails, "" if nothing does.

    On an instance of its own: on another's, the traces of earlier trials would hide what it runs.
    """
    package = planted_package({})
    with _recorded() as lines:
        failure = trial.failure(package)
    return frozenset(lines), failure


def reaches(lines: Lines, mutant: Mutant) -> bool:
    """Whether a statement that the mutant changes is among the lines."""
    first, last = mutant.lines
    return any((mutant.module, line) in lines for line in range(first, last + 1))


@contextlib.contextmanager
def _recorded() -> Iterator[set[tuple[str, int]]]:
    lines: set[tuple[str, int]] = set()
    before = sys.gettrace()

    def called(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package != PACKAGE:
            return None

        def ran(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            lines.add((module, frame.f_lineno))
            return ran

        return ran(frame, event, argument)

    sys.settrace(called)
    try:
        yield lines
    finally:
        sys.settrace(before)
