"""What mutants are put to: cases of the suite in its own order, in tiers that grow.

Most mutants die of the first tier, which takes seconds; what survives is put to the next, and the
last is about what the default run does in the NumPy engine.  The tiers are the same in every run.
"""

import functools
import pathlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import properties
from properties.cases.case import Case
from properties.claims import checks, compilation, refusal
from properties.claims.invariances import drawing as invariances
from properties.claims.invariances.options import (
    DESIGNATED,
    LEFT_OUT_CASE,
    VALIDATED,
    VALIDATED_CASE,
)
from properties.claims.transformations import drawing as transformations
from properties.commands import replay
from properties.drawing import breaking, covering, provider, space, strategies
from properties.drawing.guide import Guide
from properties.faults.subjects import SUBJECTS
from properties.judging.targets import Target

T = TypeVar("T")

_REGRESSIONS = pathlib.Path(properties.__file__).parent / "regressions"


@dataclass(frozen=True)
class Trial:
    """A case put to a property, on one of `SUBJECTS`."""

    subject: str
    property: str
    case: Case

    def failure(self, package: Any) -> str:
        """What the property finds wrong with an instance of the package `kernel`, "" for nothing.

        That includes a refusal where the call breaks no rule, though other targets than the kernel
        may refuse what they like: what is tried here gives a result before it is changed.
        """
        target = _target(self.subject, package)
        result = checks.PROPERTIES[self.property](self.case, target, "auto")
        if result.failure is not None:
            return f"{result.failure.output} {result.failure.message}"
        if result.refused and self.case.breaks is None:
            return f"call is refused: {result.refused}"
        return ""


@functools.lru_cache(maxsize=len(SUBJECTS))
def _target(subject: str, package: Any) -> Target:
    return SUBJECTS[subject](package)


@dataclass(frozen=True)
class _Tier:
    """How many of each kind of case: of each rule, of each property, and so on."""

    gradients: int
    outputs: int
    rule: int
    edges: int
    invariances: int
    transformations: int
    reference: int
    compiles: bool


_TIERS = (
    _Tier(24, 6, 3, 12, 1, 0, 12, False),
    _Tier(120, 30, 12, 48, 6, 1, 60, True),
    _Tier(420, 120, 30, 120, 20, 3, 120, True),
)

COUNT = len(_TIERS)
"""How many tiers there are."""


@functools.cache
def tier(number: int) -> list[Trial]:
    """The trials of one tier, without those of the tiers before."""
    before = set() if number == 0 else set(map(repr, _all_of(_TIERS[number - 1])))
    return [trial for trial in _all_of(_TIERS[number]) if repr(trial) not in before]


def _all_of(of: _Tier) -> Iterator[Trial]:
    """Cheapest first: what breaks a rule runs no kernel."""
    for rule in breaking.BREAKERS:
        yield from _on_kernel("refusals", _drawn(strategies.refusal_cases(rule), of.rule))
    yield from _on_kernel(
        "refusals", [Case(1, 1, 8, 8, 8, breaks=rule) for rule in refusal.TRANSFORMATIONS]
    )
    yield from _regressions("flash_attention")
    sets = covering.covering_sets(space.Space(), seed=0)
    gradients = [
        replace(case, parameters={"gradient_of": _some_primals(case, number)})
        for number, case in enumerate(_guided(sets["gradients"], True, of.gradients))
    ]
    yield from _on_kernel("gradients", gradients)
    yield from _on_kernel("outputs", _guided(sets["outputs"], None, of.outputs))
    for option, case in DESIGNATED.items():
        yield Trial(
            "flash_attention",
            "invariances.option_matters",
            replace(case, parameters={"without": option}),
        )
    for field in VALIDATED:
        yield Trial(
            "flash_attention",
            "invariances.block_field_matters",
            replace(VALIDATED_CASE, parameters={"field": field}),
        )
    yield Trial("flash_attention", "invariances.options_left_out", LEFT_OUT_CASE)
    yield from _on_kernel("refusals", _drawn(strategies.edge_cases(), of.edges))
    yield from _transformed(of.transformations)
    yield from _varied(of.invariances)
    if of.compiles:
        for name, (case, precision) in compilation.DESIGNATED.items():
            parameters = {"generations": ["v5e"], "precision": precision}
            if name != "largest":  # a quarter of a minute for every mutant that it does not kill
                yield Trial("flash_attention", "compilation", replace(case, parameters=parameters))
        for case in compilation.TIGHT.values():
            parameters = {"generations": [compilation.LEAST_MEMORY], **case.parameters}
            yield Trial("flash_attention", "compilation", replace(case, parameters=parameters))
    # The references are judged by what they give.
    yield from (
        trial
        for trial in _regressions("mha_reference")
        if trial.property in ("outputs", "gradients")
    )
    for case in gradients[: of.reference]:
        plain = replace(case, block_sizes=None)
        yield Trial("mha_reference", "gradients", plain)
        yield Trial("mha_reference_bwd", "gradients", plain)
        # What jax makes of its derivative rounds as no bound here declares.
        yield Trial("mha_reference_no_custom_vjp", "outputs", replace(plain, parameters={}))


def _on_kernel(name: str, cases: Iterable[Case]) -> Iterator[Trial]:
    return (Trial("flash_attention", name, case) for case in cases)


def _drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """So many draws from a strategy, the same each time."""
    found: list[T] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        backend=provider.UNIFORM,
    )
    @given(strategy)
    def collect(drawn: T) -> None:
        found.append(drawn)

    collect()
    return found


def _guided(planned: list[covering.Drawn], backward: bool | None, count: int) -> list[Case]:
    """The first of a covering set, then what is least like them."""
    guide = Guide(space.Space(backward=backward), planned)
    chosen = random.Random(0)
    return [guide.draw(chosen).case for _ in range(count)]


def _some_primals(case: Case, number: int) -> list[str]:
    """What to differentiate by: in turn everything, and one alone."""
    names = ["q", "k", "v"] if case.bias is None else ["q", "k", "v", "ab"]
    alone, turn = divmod(number, 3)
    return names if turn else [names[alone % len(names)]]


def _regressions(subject: str) -> Iterator[Trial]:
    for path in sorted(_REGRESSIONS.glob("*.json")):
        request = replay.parse(path.read_text(encoding="utf-8"), path.parent)
        for name in reversed(replay.properties_of(request.property, request.case)):
            yield Trial(subject, name, request.case)


def _transformed(count: int) -> Iterator[Trial]:
    """The variants of some cases under every transformation."""
    if count:
        for name in transformations.DRAWN:
            for case in _drawn(transformations.cases(), count):
                for parameters in transformations.variants(name, case):
                    yield Trial("flash_attention", name, replace(case, parameters=parameters))


def _varied(count: int) -> Iterator[Trial]:
    """Some cases, each put to every invariance that it suits."""
    for case, found in _drawn(_with_parameters(), count):
        for name, parameters in found.items():
            yield Trial("flash_attention", name, replace(case, parameters=parameters))


@st.composite
def _with_parameters(draw: st.DrawFn) -> tuple[Case, dict[str, dict[str, Any]]]:
    case = draw(invariances.cases())
    found = {name: draw(invariances.parameters(name, case)) for name in invariances.DRAWN}
    return case, {name: each for name, each in found.items() if each is not None}
