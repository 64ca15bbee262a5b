"""Drawn cases are legal, varied and cheap, and failures shrink to their least form."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings

from oracle import contract
from properties.cases.case import BACKWARD_BLOCKS, DTYPES, Bias, Blocks, Case, Segments
from properties.drawing import breaking, provider, space, strategies
from properties.drawing.breaking import edges

GENERATE = settings(
    max_examples=200,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    backend=provider.UNIFORM,
    suppress_health_check=[HealthCheck.too_slow],
)


def refusal(case: Case) -> contract.Refusal | None:
    """What the contract says of a case's call."""
    arguments, blocks = breaking.call(case)
    if blocks is not None:
        refused = contract.block_sizes_refusal(blocks)
        if refused is not None:
            return refused
        absent = dict.fromkeys(BACKWARD_BLOCKS)
        arguments["block_sizes"] = SimpleNamespace(**{**absent, **blocks})
    differentiated = "gradient_of" in case.parameters
    return contract.call_refusal(**arguments, differentiated=differentiated)


def collect(strategy, profile: settings = GENERATE) -> list[Case]:
    drawn: list[Case] = []

    @seed(0)
    @profile
    @given(strategy)
    def test(case: Case) -> None:
        drawn.append(case)

    test()
    return drawn


def sample(count: int, of: space.Space | None = None) -> list[Case]:
    chosen = random.Random(0)
    return [space.draw_case(chosen.choice, of or space.Space()) for _ in range(count)]


@GENERATE
@given(strategies.cases())
def test_cases_are_legal(case: Case) -> None:
    assert refusal(case) is None
    assert Case.from_json(case.to_json()) == case
    assert case.batch * case.heads * case.q_len * case.kv_len <= space.MOST_LOGITS


@GENERATE
@given(strategies.gradient_cases())
def test_gradient_cases_are_legal_when_differentiated(case: Case) -> None:
    assert refusal(case) is None
    names = {"q", "k", "v"} | ({"ab"} if case.bias else set())
    wanted = case.parameters["gradient_of"]
    assert wanted
    assert set(wanted) <= names


@GENERATE
@given(strategies.edge_cases())
def test_edge_cases_are_legal(case: Case) -> None:
    assert refusal(case) is None
    assert Case.from_json(case.to_json()) == case


@GENERATE
@given(strategies.refusal_cases())
def test_refusal_cases_break_the_rule_they_name(case: Case) -> None:
    refused = refusal(case)
    assert refused is not None
    assert refused.rule == case.breaks
    assert Case.from_json(case.to_json()) == case


def test_refusal_cases_of_one_rule() -> None:
    assert {case.breaks for case in collect(strategies.refusal_cases("rank"))} == {"rank"}
    with pytest.raises(ValueError, match="rule='forward_mode': expected one of"):
        strategies.refusal_cases("forward_mode")


def test_every_gradient_subset_occurs() -> None:
    subsets = {tuple(c.parameters["gradient_of"]) for c in collect(strategies.gradient_cases())}
    assert len(subsets) == 15


def test_restrictions_are_kept() -> None:
    restricted = strategies.gradient_cases(
        dtypes=["bfloat16"], causal=False, bias=False, segments=False, block_sizes=False
    )
    for case in collect(restricted):
        assert (case.dtype, case.causal, case.bias) == ("bfloat16", False, None)
        assert (case.segments, case.block_sizes) == (None, None)
    for case in collect(strategies.gradient_cases(bias_gradient=False)):
        assert "ab" not in case.parameters["gradient_of"]


@pytest.mark.parametrize("dtypes", [(), ("float16",), ("float32", "int8")])
def test_a_dtype_no_case_can_have_is_refused(dtypes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected at least one of float32, bfloat16"):
        strategies.cases(dtypes=dtypes)


def test_every_option_occurs() -> None:
    drawn = sample(4000)

    assert {case.q_len for case in drawn} == set(space.Q_LENGTHS)
    assert {case.kv_len for case in drawn} == set(space.KV_LENGTHS)
    assert {case.head_dim for case in drawn} == set(space.HEAD_DIMS)
    assert {(case.batch, case.heads) for case in drawn} == {
        (b, h) for b in (1, 2, 3) for h in (1, 2)
    }
    assert {case.dtype for case in drawn} == set(DTYPES)
    blocks = [(case, case.block_sizes) for case in drawn if case.block_sizes]
    assert {size.block_b for _, size in blocks} == {1, 2, 3}
    for q_len in space.Q_LENGTHS:
        assert {size.block_q for c, size in blocks if c.q_len == q_len} == set(
            space.q_blocks(q_len)
        )
    for kv_len in space.KV_LENGTHS:
        pairs = {(size.block_k_major, size.block_k) for c, size in blocks if c.kv_len == kv_len}
        assert pairs == {
            (major, minor)
            for major in space.k_major_blocks(kv_len)
            for minor in space.k_minor_blocks(major)
        }


def test_the_three_kernels_have_blocks_of_their_own() -> None:
    both = [c.block_sizes for c in sample(2000) if c.block_sizes and c.block_sizes.backward]

    assert any(b.block_q != b.block_q_major_dkv != b.block_q_dq != b.block_q for b in both)
    assert any(b.block_k_major != b.block_k_major_dkv for b in both)
    assert any(b.block_k_major_dkv != b.block_k_major_dq for b in both)
    assert any(b.block_k_dkv != b.block_k_major_dkv for b in both)
    assert any(b.block_q_dkv != b.block_q_major_dkv for b in both)


def test_no_option_dominates() -> None:
    drawn = sample(3000)
    half = len(drawn) / 2

    families = Counter(case.values for case in drawn)
    assert max(families.values()) < 2 * min(families.values())
    for flag in (
        lambda case: case.causal,
        lambda case: case.bias is not None,
        lambda case: case.segments is not None,
        lambda case: case.dtype == "float32",
    ):
        assert 0.9 * half < sum(map(flag, drawn)) < 1.1 * half
    explicit = sum(case.block_sizes is not None for case in drawn)
    assert 0.6 < explicit / len(drawn) < 0.73
    assert sum(case.q_len > case.kv_len for case in drawn) > 0.3 * len(drawn)
    assert sum(case.q_len < case.kv_len for case in drawn) > 0.3 * len(drawn)


def test_blocks_are_few() -> None:
    for case in sample(2000):
        if case.block_sizes is None:
            continue
        for field, size in case.block_sizes.fields().items():
            if "_q" in field and field != "block_q_dkv":
                assert -(-case.q_len // size) <= 3
            if "major_d" in field and "_k" in field:
                assert case.kv_len // size <= 3


def test_some_queries_see_nothing_and_most_see_something() -> None:
    blind = rows = 0
    for case in sample(600):
        if case.segments is None:
            continue
        arrays = case.arrays()
        assert arrays.q_segment_ids is not None
        assert arrays.kv_segment_ids is not None
        sees = arrays.q_segment_ids[:, :, None] == arrays.kv_segment_ids[:, None, :]
        blind += int((~sees.any(axis=-1)).sum())
        rows += sees.shape[0] * sees.shape[1]
    assert 0.1 < blind / rows < 0.4


def test_uniform_cases_all_differ() -> None:
    drawn = collect(strategies.cases(), settings(GENERATE, max_examples=100))
    assert len({case.configuration for case in drawn}) >= 98


def test_uniform_draws_follow_the_seed() -> None:
    assert collect(strategies.cases()) == collect(strategies.cases())


def test_drawing_is_fast() -> None:
    count = 200
    start = time.process_time()
    collect(strategies.cases(), settings(GENERATE, max_examples=count))
    assert (time.process_time() - start) / count < 2e-3


def _several_majors(case: Case) -> bool:
    blocks = case.block_sizes
    return blocks is not None and blocks.block_k_major < case.kv_len


def _several_minors(case: Case) -> bool:
    blocks = case.block_sizes
    return blocks is not None and blocks.block_k < blocks.block_k_major


def _ragged_batch(case: Case) -> bool:
    blocks = case.block_sizes
    return blocks is not None and case.batch % blocks.block_b > 0


LEAST = Case(1, 1, 1, 1, 1)
"""The case of all first options: what is left of a failure is what it takes."""

SHRINKS: list[tuple[Callable[[Case], bool], dict]] = [
    (
        lambda case: case.causal and _several_majors(case),
        {"causal": True, "kv_len": 256, "block_sizes": Blocks(1, 128, 128, 1)},
    ),
    (_several_minors, {"kv_len": 256, "block_sizes": Blocks(1, 256, 128, 1)}),
    (
        lambda case: _several_majors(case) and _several_minors(case),
        {"kv_len": 512, "block_sizes": Blocks(1, 256, 128, 1)},
    ),
    (
        lambda case: case.bias is not None and case.bias.dtype == "bfloat16" and case.sm_scale != 1,
        {"bias": Bias("bfloat16", "normal"), "sm_scale": 0.3},
    ),
    (_ragged_batch, {"batch": 3, "block_sizes": Blocks(1, 1, 1, 2)}),
    (
        lambda case: case.segments is not None and case.dtype == "bfloat16",
        {"segments": Segments("int32", (((0, 1),),), (((0, 1),),)), "dtype": "bfloat16"},
    ),
    (
        lambda case: case.kv_len >= 129 and case.values == "peaked",
        {"kv_len": 129, "values": "peaked"},
    ),
]
"""What fails, and what the least case that fails has beside the first options."""


@pytest.mark.parametrize("number", range(len(SHRINKS)))
def test_failures_shrink_to_the_least_case(number: int) -> None:
    fails, expected = SHRINKS[number]
    tried: set[Case] = set()
    until_found = 0

    def condition(case: Case) -> bool:
        nonlocal until_found
        tried.add(case)
        failed = fails(case)
        if failed and not until_found:
            until_found = len(tried)
        return failed

    found = find(
        strategies.cases(),
        condition,
        settings=settings(GENERATE, max_examples=5000, phases=[Phase.generate, Phase.shrink]),
        random=random.Random(1),
    )

    assert found == replace(LEAST, **expected)
    assert len(tried) - until_found < 150


def test_edges_are_all_drawn() -> None:
    drawn = collect(strategies.edge_cases(), settings(GENERATE, max_examples=600))

    forms = {(c.parameters["edge"], c.parameters["form"]) for c in drawn if c.parameters}
    assert forms == {(edge, form) for edge, forms in edges.FORMS.items() for form in forms}
    sizes = {(c.q_len, c.kv_len, c.block_sizes, c.segments) for c in drawn if not c.parameters}
    assert sizes == {(c.q_len, c.kv_len, c.block_sizes, c.segments) for c in edges.SIZES}
