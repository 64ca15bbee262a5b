"""What a run has done so far: counted while it goes, merged over workers, said at the end.

A `Tally` takes results in, can be sent from a pytest-xdist worker as plain data, and is put into
words by `summary`.
"""

import dataclasses
import functools
import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import Any

from properties import engines
from properties.drawing.coverage import Coverage
from properties.drawing.space import Space
from properties.drawing.triples import Triples
from properties.judging.result import Result

# A run that could not judge more than this part of its rows has not tested what it says it tested.
UNTESTED_LIMIT = 0.02


@dataclasses.dataclass
class Ratios:
    """Error over bound of one output in one dtype, of each case the worst element.

    Of all cases but the worst two digits are kept: that bounds the memory of a run of any length.
    Above 1 is beyond the bound, in two digits too.
    """

    worst: float = 0.0
    elements: int = 0
    cases: Counter[str] = dataclasses.field(default_factory=Counter)

    @classmethod
    def of_case(cls, ratio: float, elements: int) -> "Ratios":
        """Those of one case."""
        shown = f"{ratio:.1e}"
        return cls(ratio, elements, Counter(["1.1e+00" if ratio > 1 >= float(shown) else shown]))

    def add(self, other: "Ratios") -> None:
        self.worst = max(self.worst, other.worst)
        self.elements += other.elements
        self.cases.update(other.cases)

    @property
    def median(self) -> float:
        """Over cases, of the worst ratio in each."""
        left = self.cases.total() / 2
        for ratio in sorted(self.cases, key=float):
            left -= self.cases[ratio]
            if left <= 0:
                return float(ratio)
        return 0.0

    @property
    def histogram(self) -> list[tuple[float, int]]:
        """Cases by ratio, four bins a decade that begin above and end at the given ratio. What is
        0 or infinite stands by itself."""
        bins: Counter[float] = Counter()
        for shown, cases in self.cases.items():
            ratio = float(shown)
            if 0 < ratio < math.inf:
                ratio = 10.0 ** (math.ceil(4 * math.log10(ratio)) / 4)
            bins[ratio] += cases
        return sorted(bins.items())


@dataclasses.dataclass
class PropertyTally:
    """The cases of one property; `unvisited` are those that the budget left no time for.

    `elements` were held against a bound, of which `worst_ratio` came closest to it.
    """

    cases: int = 0
    seconds: float = 0.0
    failures: int = 0
    unvisited: int = 0
    elements: int = 0
    worst_ratio: float = 0.0

    def add(self, other: "PropertyTally") -> None:
        worst = max(self.worst_ratio, other.worst_ratio)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, value)
        self.worst_ratio = worst


class Tally:
    """The counts of one process, or of several after `merge`."""

    def __init__(self, of: Space | None = None) -> None:
        """`of` is the space that cases are drawn from, the whole by default."""
        self._space = of
        self._started = time.process_time()
        self.properties: defaultdict[str, PropertyTally] = defaultdict(PropertyTally)
        self.ratios: defaultdict[tuple[str, str], Ratios] = defaultdict(Ratios)
        self.counts: Counter[str] = Counter()  # rows, untested_rows
        self.configurations: set[str] = set()
        self.modes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.stages: defaultdict[str, float] = defaultdict(float)
        self.failures: list[dict[str, Any]] = []
        self.first_failure: dict[str, Any] | None = None
        self.lost_workers: list[str] = []

    @functools.cached_property
    def coverage(self) -> Coverage:
        """Pairs of features visited. Not made before it is needed: it takes a second."""
        return Coverage(self._space)

    @functools.cached_property
    def triples(self) -> Triples:
        """Triples of features visited."""
        return Triples(self._space)

    def add(self, result: Result, seconds: float) -> None:
        """Counts one case; `seconds` is the time that all of it took."""
        mine = self.properties[result.name]
        mine.seconds += seconds
        if result.skipped:
            self.skipped[result.name, result.skipped] += 1
            return
        mine.cases += 1
        self.coverage.add(result.case)
        self.triples.add(result.case)
        self.stages["oracle"] += result.oracle_seconds
        if result.refused:
            self.refused[result.refused] += 1
            return
        self.configurations.add(_digest(result.case.configuration))
        self.modes.update(result.ran)
        if result.fallback:
            self.skipped["numpy engine, interpret instead", result.fallback] += 1
        self.counts.update(rows=result.rows, untested_rows=result.untested_rows)
        # A family of properties ("family.name") may compare results with each other.
        against_truth = "." not in result.name
        for each in result.verdicts:
            if each.ratio is None:
                continue
            mine.elements += each.elements
            mine.worst_ratio = max(mine.worst_ratio, each.ratio)
            if against_truth:
                of_case = Ratios.of_case(each.ratio, each.elements)
                self.ratios[each.output, result.case.dtype].add(of_case)

    def failed(self, result: Result) -> None:
        """Notes what it took to find the first failure: called as soon as it is found."""
        if self.first_failure is None:
            self.first_failure = {
                "property": result.name,
                "cases": sum(each.cases for each in self.properties.values()),
                "cpu_seconds": time.process_time() - self._started,
            }

    def fail(self, report: dict[str, Any]) -> None:
        """Counts one failure, reduced as far as it goes, by its report."""
        self.properties[report["property"]].failures += 1
        self.failures.append(report)

    def to_data(self) -> dict[str, Any]:
        """All of it as builtin types, to be sent to another process and merged there."""
        return {
            "properties": {name: vars(tally) for name, tally in self.properties.items()},
            "ratios": [
                (*key, ratios.worst, ratios.elements, dict(ratios.cases))
                for key, ratios in self.ratios.items()
            ],
            "counts": dict(self.counts),
            "configurations": sorted(self.configurations),
            "modes": dict(self.modes),
            "refused": dict(self.refused),
            "skipped": [(*key, count) for key, count in self.skipped.items()],
            "stages": self.stage_seconds(),
            "coverage": self.coverage.to_data() if self.properties else [],
            "triples": self.triples.to_data() if self.properties else "",
            "first_failure": self.first_failure,
        }

    def merge(self, data: dict[str, Any]) -> None:
        """Adds what `to_data` gave in another process. Failures travel with pytest's reports."""
        for name, fields in data["properties"].items():
            self.properties[name].add(PropertyTally(**fields))
        for output, dtype, worst, elements, cases in data["ratios"]:
            self.ratios[output, dtype].add(Ratios(worst, elements, Counter(cases)))
        self.counts.update(data["counts"])
        self.configurations.update(data["configurations"])
        self.modes.update(data["modes"])
        self.refused.update(data["refused"])
        for what, why, count in data["skipped"]:
            self.skipped[what, why] += count
        for stage, seconds in data["stages"].items():
            self.stages[stage] += seconds
        self.first_failure = self.first_failure or data["first_failure"]
        if data["coverage"]:
            self.coverage.merge(data["coverage"])
            self.triples.merge(data["triples"])

    def stage_seconds(self) -> dict[str, float]:
        """Seconds per stage, of this process and of those merged."""
        total = dict(self.stages)
        for stage, seconds in engines.STAGES.snapshot().items():
            total[stage] = total.get(stage, 0.0) + seconds
        return total

    @property
    def vacuous(self) -> str:
        """Why the run has tested too little to pass, empty if it has not."""
        rows, untested = self.counts["rows"], self.counts["untested_rows"]
        if untested <= UNTESTED_LIMIT * rows:
            return ""
        return (
            f"{untested} of {rows} rows are too ill-conditioned for the bound to say anything; "
            f"the limit is {UNTESTED_LIMIT:.0%}"
        )


def _digest(configuration: Hashable) -> str:
    """The same in every process, unlike `hash`."""
    return hashlib.blake2b(repr(configuration).encode(), digest_size=8).hexdigest()
