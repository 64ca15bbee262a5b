"""A guided test runs the covering set, then new triples, and shrinks and replays as ever."""

import random
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import InMemoryExampleDatabase

from properties.cases.case import Case
from properties.drawing import provider, space, strategies
from properties.drawing.coverage import Atom, features
from properties.drawing.covering import Drawn, covering_sets, part
from properties.drawing.guide import Guide
from properties.drawing.triples import Triples

WHOLE = space.Space()
SMALL = space.Space(
    ("float32",), bias=False, segments=False, q_lengths=(1, 9), kv_lengths=(8, 256), head_dims=(8,)
)

UNIFORM = settings(
    max_examples=60,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    backend=provider.UNIFORM,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def covering() -> dict[str, list[Drawn]]:
    return covering_sets(WHOLE, 0)


def collect(guide: provider.Guide, strategy, profile: settings = UNIFORM) -> list[Case]:
    drawn: list[Case] = []

    @seed(0)
    @profile
    @given(strategy)
    def test(case: Case) -> None:
        drawn.append(case)

    with provider.guided(guide):
        test()
    return drawn


@pytest.mark.parametrize(
    ("name", "of", "strategy"),
    [
        ("gradients", space.Space(backward=True), strategies.gradient_cases()),
        ("outputs", WHOLE, strategies.cases()),
    ],
)
def test_the_covering_set_comes_first(covering, name: str, of: space.Space, strategy) -> None:
    drawn = collect(Guide(of, covering[name], shard=1, shards=4), strategy)

    planned = [each.case for each in part(covering[name], 1, 4)]
    # Hypothesis itself always begins with the simplest case.
    got = [Case.from_json({**case.to_dict(), "parameters": {}}) for case in drawn]
    assert got[1 : 1 + len(planned)] == planned
    assert len(got) == UNIFORM.max_examples


def test_the_same_seed_gives_the_same_cases(covering) -> None:
    once, again = (collect(Guide(WHOLE, covering["outputs"]), strategies.cases()) for _ in range(2))
    assert once == again


def test_guided_cases_visit_more_triples_than_uniform_ones() -> None:
    guided, uniform = Triples(), Triples()
    guide, chosen = Guide(WHOLE, []), random.Random(0)
    for case in collect(guide, strategies.cases()):
        guided.add(case)
    for _ in range(UNIFORM.max_examples):
        uniform.add(space.draw_case(chosen.choice, WHOLE))

    assert guided.visited > 1.2 * uniform.visited


def test_every_legal_triple_is_visited_in_the_end_and_no_other() -> None:
    guide, seen, chosen = Guide(SMALL, []), Triples(SMALL), random.Random(0)
    shown: set[tuple[Atom, ...]] = set()
    for _ in range(800):
        choices = iter(guide(chosen))
        case = space.draw_case(lambda options, left=choices: options[next(left)], SMALL)
        assert next(choices, None) is None
        seen.add(case)
        shown.update(combinations(sorted(features(case).items()), 3))

    assert seen.missing() == []
    assert len(shown) == seen.legal


def test_without_a_guide_draws_are_uniform(covering) -> None:
    drawn: list[Case] = []

    @seed(0)
    @UNIFORM
    @given(strategies.cases())
    def test(case: Case) -> None:
        drawn.append(case)

    with provider.guided(Guide(WHOLE, covering["outputs"])):
        pass
    test()
    assert drawn[1] != covering["outputs"][0].case


def test_a_guide_for_another_strategy_is_told_so() -> None:
    data: Any = SimpleNamespace(_random=random.Random(0))
    with (
        provider.guided(lambda _: [99]),
        pytest.raises(ValueError, match="the guide gives 99 for an integer from 0 to 16"),
    ):
        provider.UniformProvider(data).draw_integer(0, 16)


def test_a_guided_failure_shrinks_and_is_replayed(covering) -> None:
    """The planted fault needs a feature of the last planned case, which is shrunk to that alone."""
    whole = covering["outputs"]
    database = InMemoryExampleDatabase()
    calls: list[Case] = []

    @settings(
        UNIFORM,
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
        database=database,
        report_multiple_bugs=False,
    )
    @given(strategies.cases())
    def test(case: Case) -> None:
        calls.append(case)
        assert features(case).get("block_k") != "majors of minors"

    with provider.guided(Guide(WHOLE, whole)), pytest.raises(AssertionError):
        test()
    least = calls[-1]
    assert (least.batch, least.heads, least.q_len, least.kv_len) == (1, 1, 1, 512)
    assert (least.bias, least.segments, least.causal, least.values) == (None, None, False, "normal")

    calls.clear()
    with provider.guided(Guide(WHOLE, whole)), pytest.raises(AssertionError):
        test()
    assert calls[0] == least
    assert len(calls) < 10
