"""The work that the benchmark times, done in a process of its own.

The cases are those of a default run: a covering set and what a guide adds to it, in random order,
so that every moment of a measurement sees the same mixture.  They go through `Run` as they do in
the tests.  Gradients are taken in every argument, where a test picks some.
"""

import functools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from properties import engines, environment
from properties.cases.case import Case
from properties.claims import checks
from properties.drawing import space
from properties.drawing.covering import Drawn, covering_sets
from properties.drawing.guide import Guide
from properties.judging.targets import KERNEL, Target
from properties.session import failure
from properties.session.run import Run

PROPERTIES = ("gradients", "outputs")

STAGES = ("trace", "lower", "compile", "run", "oracle", "bounds", "rest")

# Of each property, so that covering cases and others come as often as in a default run.
_SHUFFLED = 200


@dataclass
class Measured:
    """What some cases took. seconds: wall clock; stages: seconds of wall clock by `STAGES`."""

    cases: int = 0
    configurations: int = 0
    failures: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def add(self, other: "Measured") -> None:
        for each in fields(self):
            if each.name != "stages":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        for stage, seconds in other.stages.items():
            self.stages[stage] += seconds


class Workload:
    """Cases without end for one process, and the runs that they go through."""

    def __init__(self, worker: int) -> None:
        self._target = Target.load(KERNEL)
        # Only the first is asked for more than the fast engine.
        modes = ("numpy", "interpret") if worker == 0 else ("numpy",)
        self._runs = {mode: Run(self._target, mode) for mode in modes}
        covering = covering_sets(space.Space(), worker)
        self._cases = {name: _cases(name, covering[name], worker) for name in PROPERTIES}
        for run in self._runs.values():
            for name in PROPERTIES:
                # Once before anything is timed: the first of everything imports and initialises.
                run.explore(name, next(self._cases[name]))

    def rates(self, mode: str, name: str, count: int) -> dict[str, Measured]:
        """So many new configurations: "new" is one case in each, with its stages, "reuse" that
        and the further data that a run draws in it."""
        cases = [next(self._cases[name]) for _ in range(count)]
        new = self._measure(mode, name, cases, further=False)
        values, bounds = self._truths(name, mode, cases)
        new.stages |= {"oracle": values, "bounds": bounds}
        # What judging took beside the truth is comparison, and belongs to the rest.
        new.stages["rest"] = new.seconds - sum(new.stages.values())
        # The same cases again, whose programs are kept, and the further data.
        again = self._measure(mode, name, cases, further=True)
        further = 1 - new.cases / max(again.cases, 1)
        reuse = Measured(
            again.cases,
            new.configurations,
            new.failures + again.failures,
            new.cpu_seconds + further * again.cpu_seconds,
            new.seconds + further * again.seconds,
        )
        return {"new": new, "reuse": reuse}

    def during(self, mode: str, seconds: float) -> Measured:
        """As many cases as there is time for, of both properties in turn, with further data."""
        total = Measured()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name in PROPERTIES:
                total.add(self._measure(mode, name, [next(self._cases[name])], further=True))
        return total

    def _measure(self, mode: str, name: str, cases: list[Case], *, further: bool) -> Measured:
        run = self._runs[mode]
        do = run.explore if further else run.check
        tally = run.tally
        measured = Measured(-_cases_of(run), -len(tally.configurations))
        before = engines.STAGES.snapshot()
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        try:
            for case in cases:
                do(name, case)
        except failure.PropertyFailure:
            # The suite says what is wrong; here it only spoils the figures.
            measured.failures += 1
        measured.cpu_seconds = time.process_time() - cpu_seconds
        measured.seconds = time.perf_counter() - seconds
        measured.cases += _cases_of(run)
        measured.configurations += len(tally.configurations)
        for stage, total in engines.STAGES.snapshot().items():
            measured.stages[stage] = total - before[stage]
        return measured

    def _truths(self, name: str, mode: str, cases: list[Case]) -> tuple[float, float]:
        """Seconds that the truth and the bounds of some cases take."""
        values = bounds = 0.0
        judged = ("o", "l", "m") + (("dq", "dk", "dv") if name == "gradients" else ())
        for case in cases:
            arrays = case.arrays()
            start = time.perf_counter()
            truth = checks.truth_of(case, self._target, mode, arrays)
            _ = truth.values
            middle = time.perf_counter()
            for output in judged:
                truth.bound(output)
            values += middle - start
            bounds += time.perf_counter() - middle
        return values, bounds


@functools.cache
def workload(worker: int) -> Workload:
    """The workload of this process, which is the worker of that number."""
    environment.settle()
    return Workload(worker)


def prepare(worker: int) -> None:
    workload(worker)


def rates(worker: int, mode: str, name: str, count: int) -> dict[str, Measured]:
    return workload(worker).rates(mode, name, count)


def during(worker: int, mode: str, seconds: float) -> Measured:
    return workload(worker).during(mode, seconds)


def _cases(name: str, covering: list[Drawn], worker: int) -> Iterator[Case]:
    of = space.Space(backward=True) if name == "gradients" else space.Space()
    guide = Guide(of, covering)
    chosen = random.Random(worker)
    first = [guide.draw(chosen).case for _ in range(_SHUFFLED)]
    chosen.shuffle(first)
    yield from first
    while True:
        yield guide.draw(chosen).case


def _cases_of(run: Run) -> int:
    return sum(each.cases for each in run.tally.properties.values())
