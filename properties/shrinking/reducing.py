"""The reducer: greedy, over the fields of a case, small dimensions first."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from properties.cases.case import Case, CaseError
from properties.reports import essential
from properties.shrinking import moves, real_values, start
from properties.shrinking.fitting import resized, with_fitted_parameters
from properties.shrinking.signature import Signature

Fails = Callable[[Case], Signature | None]
"""Runs a case: how it fails, None if it does not. Raises CaseError for what is no case of the
property."""


@dataclass(frozen=True)
class Step:
    """A simpler case that fails too: after how many runs and seconds, and what made it simpler."""

    runs: int
    seconds: float
    what: str
    case: Case


@dataclass
class Reduced:
    """The smallest case that was found to fail with `signature`, None where nothing failed.

    explanation: what becomes of it when one thing is changed, as in `essential.explain`: "feature",
    "from", "to", and "outcome", one of "fails", "fails otherwise", "holds", "does not apply".
    runs: how many cases were run to find it; explaining_runs: how many more to explain it.
    complete: whether the search came to its end, rather than to a limit.
    """

    reported: Case
    case: Case | None = None
    signature: Signature | None = None
    steps: list[Step] = field(default_factory=list)
    explanation: list[dict[str, str]] = field(default_factory=list)
    runs: int = 0
    explaining_runs: int = 0
    seconds: float = 0.0
    complete: bool = True


class _Spent(Exception):
    """The limit of runs or of time is reached."""


def reduce(
    case: Case,
    fails: Fails,
    *,
    property: str = "outputs",
    wanted: Signature | None = None,
    folder: Path | None = None,
    progress: Callable[[Step], None] = lambda step: None,
    waiting: Callable[[str, Case], None] = lambda what, case: None,
    most: int = 400,
    deadline: float = float("inf"),
    explaining: bool = True,
) -> Reduced:
    """Reduces a case that is said to fail to the smallest one that fails in the same way.

    wanted: how it fails; None takes the first failure that is found for it, and so does what is
    nowhere found as it was reported. progress: called with each simpler case that fails. waiting:
    called before a case that takes long. property: whose
    parameters the case has. folder: where the values of reduced cases with tensors are written;
    needed for those alone. A case that is not `start.cheap` is itself run only if none of the small
    ones that resemble it fails. The search stops after `most` runs or at `deadline`, of
    `time.monotonic`, with what it has. explaining: whether to change the result in one thing at a
    time, which takes up to 30 more runs. Raises CaseError if the case is itself none of the
    property.
    """
    search = _Search(case, fails, wanted, progress, most, deadline)
    try:
        tensors = case.tensors is not None
        search.begin(real_values.starts(case, folder) if tensors else start.starts(case), waiting)
        if search.reduced.case is not None:
            search.descend(property, folder)
    except _Spent:
        search.reduced.complete = False
    search.note()
    if explaining:
        search.explain(folder)
    return search.reduced


def _changes(case: Case, folder: Path | None) -> Iterator[essential.Change]:
    """What to change in a minimal case; lengths in explicit blocks, of which `essential.changes`
    knows nothing, and all that has tensors, as the last pass of the reduction changed them."""
    groups: list[Callable[[Case], moves.Moves]] = []
    if case.tensors is not None:
        assert folder is not None
        groups = real_values.groups(folder)[:3]
    else:
        yield from essential.changes(case)
        if case.block_sizes is not None:
            groups = [moves.lengths]
    for group in groups:
        # Of each feature the smallest change, which comes last.
        for move in {move.feature: move for move in group(case)}.values():
            yield move.feature, move.before, move.after, move.case


class _Search:
    def __init__(
        self,
        case: Case,
        fails: Fails,
        wanted: Signature | None,
        progress: Callable[[Step], None],
        most: int,
        deadline: float,
    ) -> None:
        self.reduced = Reduced(case, signature=wanted)
        self._fails, self._progress = fails, progress
        self._most, self._deadline = most, deadline
        self._began = time.monotonic()
        self._known: dict[Case, str] = {}
        self._taken: set[Case] = set()
        self._otherwise: tuple[Case, Signature] | None = None
        self._runs = 0

    def begin(
        self, candidates: Iterable[tuple[str, Case]], waiting: Callable[[str, Case], None]
    ) -> None:
        """Takes the first of the candidates that fails."""
        for what, candidate in candidates:
            if start.slow(candidate):
                waiting(what, candidate)
            if self._outcome(candidate) == "fails":
                self._accept(what, candidate)
                return
        # What fails otherwise here may be the same fault elsewhere: better than nothing.
        if self._otherwise is not None:
            candidate, self.reduced.signature = self._otherwise
            self._known.clear()
            self._known[candidate] = "fails"
            self._accept("fails, but otherwise than reported", candidate)

    def descend(self, name: str, folder: Path | None) -> None:
        """Moves on from the case that fails to simpler ones, until there is none that fails."""
        unchanged, place = 0, 0
        while unchanged <= len(groups := self._groups(name, folder)):
            if unchanged == len(groups):
                # Last, for it takes many runs where a dimension could be of any size.
                changed = self._bisect_dimensions()
            else:
                changed = self._take_one(groups[place % len(groups)])
                place += not changed
            unchanged = 0 if changed else unchanged + 1

    def _groups(self, name: str, folder: Path | None) -> list[Callable[[Case], moves.Moves]]:
        if self._current.tensors is None:
            return moves.groups(name)
        assert folder is not None
        return real_values.groups(folder)

    def _take_one(self, group: Callable[[Case], moves.Moves]) -> bool:
        """Goes to the first simpler case of a group that fails, if there is one."""
        for move in group(self._current):
            # One that was taken before would lead around in a circle.
            if move.case not in self._taken and self._outcome(move.case) == "fails":
                self._accept(str(move), move.case)
                return True
        return False

    def _bisect_dimensions(self) -> bool:
        """Where one less than a dimension fails too, looks for the least that does."""
        if self._current.tensors is not None:
            return False
        before = self._current
        for name, usual in moves.USUAL.items():
            size = getattr(self._current, name)
            least = max((each for each in usual if each < size), default=0)
            if size - least < 2 or not self._shrinks(name, size - 1):
                continue
            most = size - 1
            while most - least > 1:
                middle = (least + most) // 2
                if self._shrinks(name, middle):
                    most = middle
                else:
                    least = middle
        return self._current != before

    def _shrinks(self, name: str, size: int) -> bool:
        """Whether the case fails with one dimension that small; it is then the current one."""
        before = getattr(self._current, name)
        sizes: dict[str, Any] = {name: size}
        changed = resized(self._current, **sizes)
        fails = self._outcome(changed) == "fails"
        if fails:
            self._accept(f"{name}: {before} -> {size}", changed)
        return fails

    @property
    def _current(self) -> Case:
        assert self.reduced.case is not None
        return self.reduced.case

    def note(self) -> None:
        """Says what it took to find the case."""
        reduced = self.reduced
        reduced.runs, reduced.seconds = self._runs, time.monotonic() - self._began

    def explain(self, folder: Path | None) -> None:
        """Changes the minimal case in one thing at a time."""
        reduced = self.reduced
        case = reduced.case
        if case is None or (case.tensors is not None and not reduced.complete):
            return
        self._most += _MOST_EXPLAINING
        for feature, before, after, changed in _changes(case, folder):
            try:
                outcome = self._outcome(with_fitted_parameters(changed, case))
            except _Spent:
                outcome = "not tried"
            reduced.explanation.append(
                {"feature": feature, "from": before, "to": after, "outcome": outcome}
            )
        reduced.explaining_runs = self._runs - reduced.runs

    def _accept(self, what: str, case: Case) -> None:
        self.reduced.case = case
        self._taken.add(case)
        step = Step(self._runs, time.monotonic() - self._began, what, case)
        self.reduced.steps.append(step)
        self._progress(step)

    def _outcome(self, case: Case) -> str:
        if case not in self._known:
            if self._runs >= self._most or time.monotonic() > self._deadline:
                raise _Spent
            self._runs += 1
            self._known[case] = self._run(case)
        return self._known[case]

    def _run(self, case: Case) -> str:
        try:
            found = self._fails(case)
        except CaseError:
            if case is self.reduced.reported:
                raise
            return "does not apply"
        if found is None:
            return "holds"
        if self.reduced.signature is None:
            self.reduced.signature = found
        if found == self.reduced.signature:
            return "fails"
        if self._otherwise is None:
            self._otherwise = case, found
        return "fails otherwise"


_MOST_EXPLAINING = 30
