"""All that the journals of a job say, counted: what was run, what is open, what was found."""

import hashlib
import pathlib
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from properties.cases.case import Case
from properties.drawing import triples
from properties.drawing.space import Space
from properties.fuzzing import journal
from properties.session.tally import Tally


@dataclass(frozen=True)
class Open:
    """A case that was begun and has not ended. replay: of what, if it was asked for."""

    number: int
    property: str
    case: Case
    test: str
    replay: str | None
    since: float  # of time.monotonic, when this process learned of it

    @classmethod
    def from_data(cls, record: dict[str, Any]) -> "Open":
        """From the record of a journal, or what `to_data` gave. Raises CaseError."""
        return cls(
            record["begin"],
            record["property"],
            Case.from_json(record["case"], record["folder"]),
            record.get("test", ""),
            record.get("replay"),
            time.monotonic(),
        )

    def to_data(self) -> dict[str, Any]:
        return {
            "begin": self.number,
            "property": self.property,
            "case": self.case.to_dict(),
            "folder": str(self.case.folder),
            "test": self.test,
            "replay": self.replay,
        }


@dataclass(frozen=True)
class Ended:
    """What became of a case that was begun. report: how it failed, if it did; a case that was
    `lost` has none yet, `how` tells what happened; hung: whether it had to be ended."""

    begun: Open
    seconds: float
    report: dict[str, Any] | None = None
    how: str = ""
    hung: bool = False
    log: str = ""


class Ledger:
    """Counts records of journals, each once; `data` is all of it, for the next run of the job."""

    def __init__(self, of: Space) -> None:
        """`of` is the space that cases are drawn from."""
        self._space = of
        self.tally = Tally(of)
        self.counts: Counter[str] = Counter()  # begun, ended, crashed, hung, interrupted
        self.cpu_seconds = 0.0
        self.used: defaultdict[str, float] = defaultdict(float)
        self.done: set[str] = set()
        self.avoid: set[str] = set()
        self.open: dict[int, Open] = {}
        self._interruptions: Counter[str] = Counter()  # by digest
        # What guides are to know; each counts in the space that it draws from.
        self.visited = {
            "outputs": triples.Triples(of),
            "gradients": triples.Triples(replace(of, backward=True)),
        }

    def take(self, process: int, record: journal.Record) -> Ended | None:
        """Counts one record of a process."""
        if "begin" in record:
            self.open[process] = Open.from_data(record)
            self.counts["begun"] += 1
        elif "done" in record:
            self.done.add(record["done"])
        elif process in self.open:
            return self._end(self.open.pop(process), record)
        return None

    def _end(self, begun: Open, record: journal.Record) -> Ended | None:
        if "interrupted" in record:
            self.counts["interrupted"] += 1
            self._interruptions[journal.digest(begun.property, begun.case)] += 1
            return Ended(begun, 0.0, how="interrupted")
        if begun.property in self.visited:
            self.visited[begun.property].add(begun.case)
        seconds = record["seconds"]
        self.used[begun.test] += seconds
        counted = self.tally.properties[begun.property]
        if "lost" in record:
            self.counts["hung" if record["hung"] else "crashed"] += 1
            self.avoid.add(journal.digest(begun.property, begun.case))
            counted.cases += 1
            counted.seconds += seconds
            return Ended(begun, seconds, None, record["how"], record["hung"], record["log"])
        self.counts["ended"] += 1
        self.cpu_seconds += record["cpu_seconds"]
        for stage, spent in record["stages"].items():
            self.tally.stages[stage] += spent
        if "result" in record:
            self.tally.add(journal.result_of(record["result"], begun.case), seconds)
        report = record.get("report")
        if report is not None and self.tally.first_failure is None:
            self.tally.first_failure = {
                "property": begun.property,
                "cases": sum(each.cases for each in self.tally.properties.values()),
                "cpu_seconds": self.cpu_seconds,
            }
        return Ended(begun, seconds, report)

    def interruptions(self, case: Open) -> int:
        """How often processes were ended from outside, as it seems, that were at the same case."""
        return self._interruptions[journal.digest(case.property, case.case)]

    @property
    def cases(self) -> int:
        """How many cases were run, those that ended their process among them."""
        return sum(self.counts[name] for name in ("ended", "crashed", "hung"))

    @property
    def balance(self) -> str:
        """Whether every case that was begun is accounted for, in words."""
        names = ("ended", "crashed", "hung", "interrupted")
        parts = [f"{self.counts[name]} {name}" for name in names]
        still = f" + {len(self.open)} open" if self.open else ""
        return f"{self.counts['begun']} begun = {' + '.join(parts)}{still}"

    def data(self) -> dict[str, Any]:
        """JSON-ready, for `restore`."""
        return {
            "space": fingerprint(self._space),
            "tally": self.tally.to_data(),
            "counts": dict(self.counts),
            "cpu_seconds": self.cpu_seconds,
            "done": sorted(self.done),
            "visited": {name: each.to_data() for name, each in self.visited.items()},
            "open": {str(process): each.to_data() for process, each in self.open.items()},
        }

    def restore(self, data: dict[str, Any]) -> bool:
        """Goes on from what `data` gave. False, and nothing is taken over but the balance, where
        the target has come to claim other cases: their features are numbered otherwise."""
        self.counts.update(data["counts"])
        for process, record in data["open"].items():
            self.counts["begun"] -= 1  # counted again
            self.take(int(process), record)
        if data["space"] != fingerprint(self._space):
            return False
        self.tally.merge(data["tally"])
        self.cpu_seconds = data["cpu_seconds"]
        self.done |= set(data["done"])
        for name, visited in data["visited"].items():
            self.visited[name].merge(visited)
        return True


def fingerprint(of: Space) -> str:
    """Names the features of a space, in their order."""
    atoms = repr((of, list(triples.numbers(of))))
    return hashlib.blake2b(atoms.encode(), digest_size=8).hexdigest()


def journals(folder: pathlib.Path) -> dict[int, list[pathlib.Path]]:
    """The journals in a folder by process, the parts of each in order."""
    found: defaultdict[int, list[pathlib.Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        if numbered := journal.numbers(path):
            found[numbered[0]].append(path)
    return dict(found)
