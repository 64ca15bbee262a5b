"""Reduces one failure at a time, beside the job: in a thread that waits for another process."""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from properties.cases.case import Case, CaseError
from properties.fuzzing.findings import DIRECT, Finding, Report, kind_of
from properties.judging.targets import MaskedRows, TargetError
from properties.shrinking import parameters, start
from properties.shrinking.patience import Patience
from properties.shrinking.reducing import Reduced, reduce
from properties.shrinking.signature import Signature
from properties.shrinking.trials import Trials

_SECONDS = 300.0
"""That one reduction may take: some ten times what most take, but for cases that hang."""

# A reduction of a hang waits for most of its candidates: not for as long as a worker is waited for.
# What is found is then given three times that.
_TIMES, _SURELY = 5.0, 3.0
_PLAIN = Case(1, 1, 1, 1, 1)


@dataclass
class Outcome:
    """What became of a finding.

    same: the finding that it turned out to be. Else reduced and report: of the minimal case, None
    where it did not fail again; under one of `DIRECT` if it fails there too. directly: how the
    minimal case of another property fails under those.
    trouble: why there is nothing of all this.
    """

    finding: Finding
    same: Finding | None = None
    reduced: Reduced | None = None
    report: Report | None = None
    directly: list[str] | None = None
    trouble: str = ""


class _Stopped(Exception):
    """The job ends."""


class Reducer:
    """Reduces on one target."""

    def __init__(self, target: str, mode: str, masked_rows: MaskedRows) -> None:
        self._how = (target, mode, masked_rows)
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[Outcome | None] | None = None
        self._trials: Trials | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        return self._pending is not None

    def begin(self, finding: Finding, others: Sequence[Finding]) -> None:
        """Starts on a finding. others: reduced ones that it may turn out to be."""
        self._pending = self._thread.submit(self._reduced, finding, others)

    def poll(self) -> Outcome | None:
        """What became of it, once it is known."""
        if self._pending is None or not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def stop(self) -> None:
        """Ends what it is at, which is lost."""
        self._stopping = True
        if self._trials is not None:
            self._trials.kill()
        self._thread.shutdown()
        self._pending = None

    def _reduced(self, finding: Finding, others: Sequence[Finding]) -> Outcome | None:
        patience = Patience(times=_TIMES) if finding.hung else Patience()
        try:
            with self._asked([finding.name], patience) as trials:
                same = self._known(finding, others, trials)
                if same is not None:
                    return Outcome(finding, same)
                outcome = self._reduce(finding, trials)
            if outcome.report is not None and finding.hung:
                self._ascertain(outcome, patience)
            if outcome.report is not None and finding.name not in DIRECT:
                self._directly(outcome, Case.from_json(outcome.report["case"]), patience)
            return outcome
        except _Stopped:
            return None
        except (CaseError, TargetError) as error:
            return Outcome(finding, trouble=str(error))

    def _asked(self, properties: Sequence[str], patience: Patience) -> Trials:
        target, mode, masked_rows = self._how
        self._trials = Trials(properties, target, mode, masked_rows, patience=patience)
        if self._stopping:
            raise _Stopped
        return self._trials

    def _fails(self, trials: Trials, case: Case) -> Signature | None:
        found = None if self._stopping else trials(case)
        if self._stopping:
            raise _Stopped  # what was found may be the end of a process that was killed
        return found

    def _known(self, finding: Finding, others: Sequence[Finding], trials: Trials) -> Finding | None:
        """The finding of which the minimal case fails as this one does, under its property."""
        for each in others:
            minimal = each.case
            if minimal.breaks or finding.case.breaks or not start.cheap(minimal):
                continue
            if each.name == finding.name:
                continue  # as a failure of the same property it would have been known
            needed = replace(minimal, parameters=finding.case.parameters)
            try:
                simplest = parameters.simplest(finding.name, needed)
                if simplest is None:
                    continue
                found = self._fails(trials, replace(minimal, parameters=simplest))
            except CaseError:
                continue
            if found == finding.signature:
                return each
        return None

    def _reduce(self, finding: Finding, trials: Trials) -> Outcome:
        if finding.hung and not finding.case.breaks:
            self._learn(finding, trials)
        with tempfile.TemporaryDirectory() as folder:
            reduced = reduce(
                finding.case,
                lambda case: self._fails(trials, case),
                property=finding.name,
                wanted=finding.signature,
                folder=Path(folder),
                deadline=time.monotonic() + _SECONDS,
                explaining=not finding.hung,
            )
        report = None if reduced.case is None else trials.reports[reduced.case]
        return Outcome(finding, None, reduced, report)

    def _learn(self, finding: Finding, trials: Trials) -> None:
        """Runs a plain case, so that it is known how long cases take."""
        simplest = parameters.simplest(finding.name, _PLAIN)
        if simplest is not None:
            try:
                self._fails(trials, replace(_PLAIN, parameters=simplest))
            except CaseError:
                return

    def _ascertain(self, outcome: Outcome, patience: Patience) -> None:
        """Takes back a reduced case that ends after all: candidates were given less time. Where
        the case as it was found ends too, nothing hangs."""
        assert outcome.report is not None
        case = Case.from_json(outcome.report["case"])
        longer = Patience(_SURELY * patience.limit(case))
        with self._asked([outcome.finding.name], longer) as trials:
            if self._fails(trials, case) is not None:
                return
            outcome.report = None
            if self._fails(trials, outcome.finding.case) is not None:
                outcome.trouble = "not reduced: how long smaller cases take varies"

    def _directly(self, outcome: Outcome, minimal: Case, patience: Patience) -> None:
        """Holds the minimal case to the truth: what fails there in the same way is reduced there,
        where it may become smaller, and needs nothing else to be seen."""
        if minimal.breaks or not start.cheap(minimal):
            return
        minimal = replace(minimal, parameters={})
        with self._asked(DIRECT, patience) as trials:
            try:
                found = self._fails(trials, minimal)
            except CaseError:
                return
            if found is None:
                return
            outcome.directly = kind_of(found)
            if outcome.directly != kind_of(outcome.finding.signature):
                return
            direct = Finding(trials.reports[minimal])
            reduced = self._reduce(direct, trials)
        if reduced.report is not None:
            outcome.reduced, outcome.report = reduced.reduced, reduced.report
