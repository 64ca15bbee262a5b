"""One run of the suite: the target, the engine, the time that is left, and what was found."""

import functools
import re
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from properties.cases import values
from properties.cases.case import Case
from properties.claims import checks
from properties.drawing import space
from properties.drawing.covering import Drawn, covering_sets
from properties.drawing.guide import Guide
from properties.judging.result import CHIP, engines_for
from properties.judging.targets import Target
from properties.session import failure
from properties.session.tally import Tally

GENERATIONS = ("v5e", "v6e")
"""The TPUs that calls are compiled for unless asked for others."""

_SECONDS = {"s": 1, "m": 60, "h": 3600}

# Further data in a traced program costs about a sixth of a new configuration: four draws more than
# double the cases, and leave most of the time to new configurations.
FURTHER_DRAWS = 4

# How many value families a further draw goes on: without a common divisor with their number, so
# that all come up, and past the neighbours, which resemble each other.
_STRIDE = 5


class BudgetSpent(unittest.SkipTest):
    """Ends a test whose share of the budget is used up.

    Hypothesis passes a skip through at once, where any other exception would be taken for a failure
    and shrunk. The plugin turns it into a pass: running out of time is no failure.
    """


def seconds_of(budget: str) -> float:
    """Seconds of a budget as "90s", "20m" or "8h". Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"budget {budget!r} is not a time such as 90s, 20m or 8h")
    return float(match[1]) * _SECONDS[match[2]]


class Budget:
    """Seconds shared out between tests in proportion to their weights.

    What a test does not use goes to the later ones. With several workers each knows only what it
    ran itself, and takes the others to be as far.
    """

    def __init__(self, seconds: float, weights: Mapping[str, float], workers: int) -> None:
        self._end = time.monotonic() + seconds
        self._weights = weights
        self._left = sum(weights.values()) / workers

    def share(self, test: str) -> float:
        """The seconds that `test`, which starts now, may take."""
        weight = self._weights[test]
        part = weight / max(self._left, weight)
        self._left -= weight
        return part * (self._end - time.monotonic())


class Run:
    """What the property tests of one process have in common."""

    def __init__(self, target: Target, mode: str, generations: Sequence[str] = GENERATIONS) -> None:
        """`generations` are those of TPUs that calls are compiled for."""
        self.target = target
        self.mode = mode
        self.generations = generations
        self.space = space.Space(**target.restrictions)
        self.tally = Tally(self.space)
        self._covering_sets = functools.cache(self._make_covering_sets)
        self._started, self._seconds = 0.0, float("inf")
        self._guide: Guide | None = None
        self._unvisited = 0
        self._failing = False

    def guide(self, name: str, shard: int, shards: int, seed: int) -> Guide:
        """Chooses the cases of one of several tests that share the cases of a property."""
        of = replace(self.space, backward=True) if name == "gradients" else self.space
        self._guide = Guide(of, self._covering_sets(seed).get(name, []), shard, shards)
        return self._guide

    def _make_covering_sets(self, seed: int) -> dict[str, list[Drawn]]:
        return covering_sets(self.space, seed, gradients="gradients" in self.target.features)

    def begin(self, seconds: float, planned: int) -> None:
        """A test starts that may take so many seconds and plans to draw so many cases."""
        # Where earlier tests took longer than they had, nothing is left, or less.
        self._started, self._seconds = time.monotonic(), max(seconds, 1e-3)
        self._guide = None
        self._unvisited = planned
        self._failing = False

    def explore(self, name: str, case: Case) -> None:
        """Checks a drawn case, then other data in the same configuration, which costs no trace.

        On a slow machine the covering set comes first: other data is drawn while the test is ahead
        of its budget. A failure is reduced with all of it, whenever it was found. A chip is given
        all before the first is judged, so that it always has work.
        """
        __tracebackhide__ = True
        others = with_other_data(case, FURTHER_DRAWS)
        if name in checks.BEGINNINGS and engines_for(self.mode) == (CHIP,):
            self._visit(name)
            cases = [case, *others] if self._is_ahead else [case]
            since = time.monotonic()
            begin = checks.BEGINNINGS[name]
            for begun in [begin(each, self.target, self.mode) for each in cases]:
                self._judge(name, begun, since)
                since = time.monotonic()
            return
        self.check(name, case)
        if self._is_ahead:
            for other in others:
                self._judge(name, self._property(name, other), time.monotonic())

    def check(self, name: str, case: Case) -> None:
        """Runs one drawn case through the property `name` and counts it.

        Raises failure.PropertyFailure if the property does not hold, BudgetSpent if the test's
        time is over (unless it has failed: then the failure is still being reduced).
        """
        __tracebackhide__ = True
        self._visit(name)
        self._judge(name, self._property(name, case), time.monotonic())

    def _visit(self, name: str) -> None:
        __tracebackhide__ = True
        if self._spent > 1 and not self._failing:
            self.tally.properties[name].unvisited += max(self._unvisited, 1)
            raise BudgetSpent("its share of the budget is used up")
        self._unvisited -= 1

    @property
    def _is_ahead(self) -> bool:
        """Whether there is time for other data: always while a failure is reduced."""
        covered = 1.0 if self._guide is None else self._guide.covered
        return self._failing or self._spent <= covered

    @property
    def _spent(self) -> float:
        """The part of the test's time that is over."""
        return (time.monotonic() - self._started) / self._seconds

    def _property(self, name: str, case: Case) -> checks.Begun:
        return lambda: checks.PROPERTIES[name](case, self.target, self.mode)

    def _judge(self, name: str, begun: checks.Begun, since: float) -> None:
        __tracebackhide__ = True
        result = begun()
        self.tally.add(result, time.monotonic() - since)
        if result.failure is not None:
            self._failing = True
            self.tally.failed(result)
            raise failure.PropertyFailure(failure.report(result, self.target, result.failure))


def with_other_data(case: Case, count: int) -> Iterator[Case]:
    """The case with other seeds and families: what it says of values, nothing else, changes."""
    families, bias_families = list(values.FAMILIES), space.bias_families(case.sm_scale)
    for step in range(1, count + 1):
        bias = case.bias and replace(
            case.bias, family=_after(bias_families, case.bias.family, step)
        )
        yield replace(
            case,
            values=_after(families, case.values, step * _STRIDE),
            bias=bias,
            seed=case.seed + step,
        )


def _after(names: Sequence[str], name: str, steps: int) -> str:
    return names[(names.index(name) + steps) % len(names)]
