"""What becomes of failures: written at once, told apart, reduced, shared, and looked for again."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from properties.cases.case import Case
from properties.fuzzing import entries
from properties.fuzzing.exchange import Exchange
from properties.fuzzing.findings import Finding, Findings, Report, contains
from properties.fuzzing.folder import Folder
from properties.fuzzing.journal import digest
from properties.fuzzing.ledger import Ended, Ledger, Open
from properties.fuzzing.reducer import Outcome, Reducer
from properties.fuzzing.slot import Slot
from properties.judging.targets import MaskedRows
from properties.shrinking.reducing import Reduced
from properties.shrinking.trials import process_report
from properties.shrinking.writing import replace_file, write

# Replays that a worker has before it at most: another one may have time for the rest.
_AT_A_TIME = 4

_AGAIN = "was open when its process was ended"
_NOT_AGAIN = "did not fail when it was run again"


@dataclass
class Origin:
    """Why a case is run that was not drawn: for a known finding, an entry of a database, or because
    it was open."""

    why: str
    finding: Finding | None = None
    entry: bytes | None = None
    own: bool = False  # an entry of this job's


class Book:
    """The findings of a job, and what is to be done about them."""

    def __init__(
        self,
        folder: Folder,
        exchange: Exchange,
        reducer: Reducer,
        ledger: Ledger,
        how: tuple[str, str, MaskedRows],
        say: Callable[[str], None],
    ) -> None:
        """how: target, mode and masked rows of reports that no worker lived to make."""
        self.findings = Findings()
        self._folder, self._exchange, self._reducer = folder, exchange, reducer
        self._ledger, self._how, self._say = ledger, how, say
        self._origins: dict[str, Origin] = {}
        self._to_ask: deque[dict[str, Any]] = deque()
        self._known_to_hang: list[Case] = []
        # Interrupted and not run since, by digest; those of them that are not asked for yet.
        self._left: dict[str, Open] = {}
        self._not_asked: list[Open] = []

    def restore(self, records: list[dict[str, Any]]) -> None:
        self.findings = Findings(records)
        self._note_hangs()

    # What is run again.

    def leave(self, left: Open) -> None:
        """Runs a case again, if need be in another run of the job, that was open when its process
        was ended from outside."""
        self._left[digest(left.property, left.case)] = left
        self._not_asked.append(left)

    @property
    def left(self) -> list[Open]:
        """Cases that are still to be run again."""
        return list(self._left.values())

    def _ask_left(self) -> None:
        for each in self._not_asked:
            if digest(each.property, each.case) in self._left:
                self._ask(each.property, each.case, Origin(_AGAIN))
        self._not_asked.clear()

    def ask_known(self) -> None:
        """Looks whether what was found before still fails."""
        known = set()
        for each in self.findings.current:
            known.add(each.entry.encode())
            self._ask(each.name, each.case, Origin("known", each))
        for value in self._exchange.kept_before():
            if value not in known:
                self._ask_entry(value, own=True)

    def _ask_entry(self, value: bytes, *, own: bool) -> None:
        try:
            entry = entries.decoded(value)
        except ValueError as error:
            self._say(f"entry of the database refused: {' '.join(str(error).split())[:200]}")
            return
        for name in entry.properties:
            self._ask(name, entry.case, Origin("database", entry=value, own=own))

    def _ask(self, name: str, case: Case, origin: Origin) -> None:
        number = f"{len(self._origins)}"
        self._origins[number] = origin
        asked = {"id": number, "property": name, "case": case.to_dict()}
        self._to_ask.append(asked | {"folder": str(case.folder)})

    def hand_out(self, slot: Slot) -> None:
        """Gives a worker what is to be run again."""
        while self._to_ask and len(slot.asked) < _AT_A_TIME:
            slot.replay(self._to_ask.popleft())

    def take_back(self, slot: Slot) -> None:
        """What a worker that has ended had not begun."""
        self._to_ask.extendleft(reversed(slot.asked.values()))
        slot.asked.clear()

    # What is heard.

    def look(self) -> None:
        """At what other machines found, and at what is reduced."""
        self._ask_left()
        while not self._exchange.arrived.empty():
            self._ask_entry(self._exchange.arrived.get(), own=False)
        outcome = self._reducer.poll()
        if outcome is not None:
            self._reduced(outcome)

    def heard(self, ended: Ended) -> None:
        """What became of a case."""
        begun = ended.begun
        origin = self._origins.get(begun.replay or "")
        if ended.how == "interrupted":
            self.leave(begun)
            return
        self._left.pop(digest(begun.property, begun.case), None)
        report = ended.report
        if ended.how:
            target, mode, masked_rows = self._how
            report = process_report(
                begun.case, target, begun.property, mode, masked_rows, ended.how
            )
        if report is None:
            if origin is not None:
                self._holds(origin)
            return
        if not self._fails(report, origin, ended.log) and ended.log:
            # Of each fault one: there may be a crash a minute.
            (self._folder.logs / ended.log).unlink(missing_ok=True)

    def _holds(self, origin: Origin) -> None:
        """What was run again does not fail any more."""
        finding = origin.finding
        if finding is not None and finding in self.findings:
            finding.current = False
            self._exchange.drop(finding.entry.encode())
            self._say(f"holds now: {finding.signature}")
        if origin.own and origin.entry is not None:
            self._exchange.drop(origin.entry)

    def _fails(self, report: Report, origin: Origin | None, log: str = "") -> bool:
        """Notes a failure; whether it is a new one."""
        self._ledger.tally.properties[report["property"]].failures += 1
        why = origin.why if origin else "drawn"
        finding = self.findings.add(report, why, log)
        if finding is None:
            return False
        if origin is not None and origin.entry is not None:
            finding.entry = origin.entry.decode()
            self._exchange.keep(origin.entry)
        else:
            finding.entry = entries.encoded(report).decode()
            self._exchange.save(finding.entry.encode())
        name = f"found/{report['property']}-{digest(report['property'], finding.case)}.report.json"
        replace_file(self._folder.path / name, (json.dumps(report) + "\n").encode())
        finding.files = [name]
        shown = "" if why == "drawn" else f" ({why})"
        self._say(f"failure{shown}: {finding.signature}: {self._folder.path / name}")
        return True

    # What is reduced.

    @property
    def to_reduce(self) -> bool:
        return self.findings.next() is not None

    @property
    def reducing(self) -> bool:
        return self._reducer.busy

    def reduce(self) -> None:
        """Starts to reduce what is next."""
        finding = self.findings.next()
        assert finding is not None
        others = self.findings.comparable(finding)
        self._reducer.begin(finding, others)

    def _reduced(self, outcome: Outcome) -> None:
        finding = outcome.finding
        if outcome.same is not None:
            others = self.findings.others(finding, outcome.same.case)
            self.findings.merge(finding, outcome.same)
            self._forget(finding)
            self._say(f"{finding.signature} is {outcome.same.signature}")
            self._again(others)
            return
        if outcome.report is None:
            finding.settled = outcome.trouble or _NOT_AGAIN
            others = self.findings.others(finding, None)
            if finding.hung and not outcome.trouble:
                self._suspected(finding)
            self._again(others)
            return
        assert outcome.reduced is not None
        found_under = finding.name
        finding.minimal, finding.directly = outcome.report, outcome.directly
        finding.explanation = outcome.reduced.explanation
        finding.settled = "reduced"
        self.findings.join(found_under, finding)
        group, others = self.findings.settle(finding)
        kept, *merged = group
        for each in merged:
            self._forget(each)
            self._say(f"{each.signature} is {kept.signature}")
        self._write(kept)
        if kept is finding:
            self._say(f"reduced: {kept.signature}: {self._folder.path / kept.files[-1]}")
        self._note_hangs()
        self._again(others)

    def _again(self, reports: list[Report]) -> None:
        """Failures that waited for one to be reduced, and are another."""
        for each in reports:
            self._ledger.tally.properties[each["property"]].failures -= 1  # counted before
            self._fails(each, None)

    def _write(self, finding: Finding) -> None:
        assert finding.minimal is not None
        case = finding.case
        reduced = Reduced(case, case, finding.signature)
        written = write(finding.minimal, reduced, self._folder.reports)
        names = [f"reports/{path.name}" for path in written]
        self._remove(name for name in finding.files if name not in names)
        value = entries.encoded(finding.minimal)
        before = entries.decoded(finding.entry.encode())
        if before.case != case or finding.name not in before.properties:
            self._exchange.replace(finding.entry.encode(), value)
            finding.entry = value.decode()
        finding.files = names

    def _forget(self, finding: Finding) -> None:
        """Removes what was written of a finding that is another one."""
        self._remove(finding.files)
        self._exchange.drop(finding.entry.encode())

    def _remove(self, names: Any) -> None:
        for name in names:
            (self._folder.path / name).unlink(missing_ok=True)

    def _suspected(self, finding: Finding) -> None:
        """A case that took too long once, and ended when it was run again: a busy machine."""
        self.findings.remove(finding)
        tally = self._ledger.tally
        tally.properties[finding.name].failures -= finding.count
        tally.skipped[finding.name, f"{finding.report['verdict']['message']} once"] += finding.count
        self._forget(finding)

    def _note_hangs(self) -> None:
        hangs = [each for each in self.findings if each.hung and each.minimal is not None]
        self._known_to_hang = [each.case for each in hangs]

    def is_known_to_hang(self, case: Case) -> bool:
        """Whether a case has all that the minimal case of a hang has."""
        return any(contains(case, each) for each in self._known_to_hang)

    def stop(self) -> None:
        """Ends a reduction, which begins anew in the next run of the job."""
        self._reducer.stop()

    def close(self) -> None:
        self._exchange.end()
