"""What was found: which failures are one fault, and which is new.

Two failures with one signature are taken for the same fault if the case of the one could be reduced
to that of the other: a case without a feature that the minimal case of a fault needs shows another
fault. In doubt there are two findings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from properties.cases.case import Case
from properties.shrinking.signature import PROCESS, Signature

Report = dict[str, Any]

MOST_ALIKE = 4
"""Findings with one signature: a fault that shows in many ways must not take the night."""

_KEPT_WAITING = 50

DIRECT = ("gradients", "outputs")
"""Properties that hold a call to the truth by itself: what fails there needs no other to show."""


@dataclass
class Finding:
    """One fault, as far as can be told.

    report: how it was first found; minimal: its report once it is reduced. also: other properties
    that it fails. count: failures that were taken for it. files: what is written of it, by name.
    settled: why nothing is left to be reduced, empty while something is. log: of the process that
    the case ended. entry: as which a database has it. current: whether it was seen, or not yet
    looked for, in this run of the job. directly: how the minimal case fails under `DIRECT`, where
    it is of another property. waiting: failures that may be another fault once it is reduced.
    """

    report: Report
    minimal: Report | None = None
    also: list[str] = field(default_factory=list)
    count: int = 1
    files: list[str] = field(default_factory=list)
    settled: str = ""
    log: str = ""
    origin: str = ""
    entry: str = ""
    current: bool = True
    directly: list[str] | None = None
    explanation: list[dict[str, str]] = field(default_factory=list)
    waiting: list[Report] = field(default_factory=list)

    @property
    def best(self) -> Report:
        return self.minimal or self.report

    @property
    def name(self) -> str:
        """The property that fails."""
        return self.best["property"]

    @property
    def hung(self) -> bool:
        """Whether it was a case that did not end."""
        return self.signature.output == PROCESS and self.signature.kind.startswith("gave nothing")

    @property
    def signature(self) -> Signature:
        return signature_of(self.best)

    @property
    def case(self) -> Case:
        return Case.from_json(self.best["case"])


def signature_of(report: Report) -> Signature:
    found = Signature.of(report)
    assert found is not None  # of a report that a property made
    return found


def kind_of(signature: Signature) -> list[str]:
    """A signature without its property, as JSON keeps it."""
    return [signature.output, signature.kind]


def contains(case: Case, minimal: Case) -> bool:
    """Whether a case has all features that a minimal case has, at sizes as large."""
    sizes = ("batch", "heads", "q_len", "kv_len", "head_dim")
    if any(getattr(case, name) < getattr(minimal, name) for name in sizes):
        return False
    for name in ("causal", "bias", "segments", "block_sizes"):
        if getattr(minimal, name) and not getattr(case, name):
            return False
    scaled = minimal.sm_scale == 1.0 or case.sm_scale != 1.0
    same_dtype = minimal.dtype in ("float32", case.dtype)
    return scaled and same_dtype


def reduces_to(case: Case, minimal: Case) -> bool:
    """Whether a case may be reduced to a minimal one."""
    return case.breaks == minimal.breaks and contains(case, minimal)


def _alike(one: Case, other: Case) -> bool:
    """Whether two cases are the same apart from what their properties need beside."""
    return replace(one, parameters={}) == replace(other, parameters={})


class Findings:
    """The findings of a job, in the order in which they were made."""

    def __init__(self, records: Iterable[dict[str, Any]] = ()) -> None:
        self._all = [Finding(**record) for record in records]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def data(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._all]

    @property
    def current(self) -> list[Finding]:
        """Those that fail, as far as is known."""
        return [each for each in self._all if each.current]

    def add(self, report: Report, origin: str, log: str = "") -> Finding | None:
        """Takes in a failure; gives the finding if it is a new one."""
        signature, case = signature_of(report), Case.from_json(report["case"])
        alike = [each for each in self._all if self._has(each, signature)]
        known = next((each for each in alike if _is_of(report, case, each)), None)
        if known is None and len(alike) >= MOST_ALIKE:
            known = alike[-1]
        if known is None:
            known = next((each for each in self._all if _ends_as(signature, case, each)), None)
            if known is not None:
                self.join(report["property"], known)
        if known is not None:
            known.count += 1
            known.current = True
            return None
        finding = Finding(report, origin=origin, log=log)
        self._all.append(finding)
        return finding

    @staticmethod
    def _has(finding: Finding, signature: Signature) -> bool:
        """Whether failures with this signature were taken for the finding before."""
        if signature.property not in (finding.name, *finding.also):
            return False
        return kind_of(signature) == kind_of(finding.signature)

    @staticmethod
    def join(name: str, finding: Finding) -> None:
        """Notes that another property fails by a finding too."""
        if name not in (finding.name, *finding.also):
            finding.also.append(name)

    def next(self) -> Finding | None:
        """The one to reduce now: what fails directly first, for others may turn out to be it."""
        left = [each for each in self._all if not each.settled and each.current]
        return min(left, key=lambda each: each.name not in DIRECT, default=None)

    def comparable(self, finding: Finding) -> list[Finding]:
        """Reduced findings that a finding may turn out to be."""
        return [each for each in self._all if each is not finding and each.minimal is not None]

    def merge(self, finding: Finding, into: Finding) -> None:
        """Takes two findings for one."""
        self._all.remove(finding)
        for name in (finding.name, *finding.also):
            self.join(name, into)
        into.count += finding.count
        into.current |= finding.current

    def remove(self, finding: Finding) -> None:
        """Forgets a finding that was none."""
        self._all.remove(finding)

    @staticmethod
    def others(finding: Finding, minimal: Case | None) -> list[Report]:
        """Takes out the failures that waited for a finding and are none of it, now that its minimal
        case is known: all of them where there is none, since it did not fail again."""
        others = [
            each
            for each in finding.waiting
            if minimal is None or not reduces_to(Case.from_json(each["case"]), minimal)
        ]
        finding.waiting = []
        finding.count -= len(others)
        return others

    def settle(self, finding: Finding) -> tuple[list[Finding], list[Report]]:
        """Compares a finding, now that it is reduced, with the others.

        Gives those that were one with it: the first is what is left of them. Then failures that
        waited for it to be reduced and are none of it.
        """
        one = [each for each in self.comparable(finding) if _are_one(finding, each)]
        others = self.others(finding, finding.case)
        # The one that shows most directly, and of these the first.
        group = sorted(
            [*one, finding],
            key=lambda each: (each.name not in DIRECT, self._all.index(each)),
        )
        if one:
            kept = group[0]
            smallest = min(group, key=lambda each: _size(each.case))
            if kept.name == smallest.name:
                kept.minimal = smallest.minimal
                kept.explanation = smallest.explanation
            for each in group[1:]:
                self.merge(each, kept)
        return group, others


def _is_of(report: Report, case: Case, known: Finding) -> bool:
    """Whether a failure, of a signature that it has, is of a finding."""
    if known.minimal is not None:
        return reduces_to(case, known.case)
    if known.settled:
        # What could not be made to fail again says nothing of other cases.
        return _alike(case, known.case)
    if len(known.waiting) < _KEPT_WAITING:
        known.waiting.append(report)
    return True


def _ends_as(signature: Signature, case: Case, known: Finding) -> bool:
    """Whether a case ended its process as a known one did that it contains, under any property,
    and whatever rule it breaks beside."""
    if signature.output != PROCESS or known.minimal is None:
        return False
    return kind_of(signature) == kind_of(known.signature) and contains(case, known.case)


def _are_one(one: Finding, other: Finding) -> bool:
    """Whether two reduced findings are the same fault."""
    if kind_of(one.signature) == kind_of(other.signature):
        if _alike(one.case, other.case):
            return True
        same = one.name == other.name or {one.name, other.name} == {*DIRECT}
        if same and (reduces_to(one.case, other.case) or reduces_to(other.case, one.case)):
            return True
    return _shows_directly(one, other) or _shows_directly(other, one)


def _shows_directly(indirect: Finding, direct: Finding) -> bool:
    """Whether the minimal case of a finding fails directly, as another finding does."""
    if direct.name not in DIRECT or indirect.directly is None:
        return False
    return indirect.directly == kind_of(direct.signature) and reduces_to(indirect.case, direct.case)


def _size(case: Case) -> tuple[int, int]:
    rows = case.batch * case.heads
    return rows * case.q_len * case.kv_len * case.head_dim, len(case.to_json())
