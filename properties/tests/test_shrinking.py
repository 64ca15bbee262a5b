"""The reducer by itself, on faults that are told from a case's fields: nothing is run."""

import time
import types
from collections.abc import Callable
from dataclasses import replace

import pytest

from oracle import contract
from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.claims.compilation import shapes
from properties.drawing.breaking import BREAKERS, SegmentIds
from properties.shrinking import moves, start
from properties.shrinking.fitting import resized
from properties.shrinking.reducing import Reduced, reduce
from properties.shrinking.signature import Signature

WRONG_O = Signature("outputs", "o")

BIG = Case(
    4,
    8,
    2048,
    2048,
    128,
    dtype="bfloat16",
    causal=True,
    sm_scale=128**-0.5,
    bias=Bias("bfloat16", "inf_columns"),
    segments=Segments(
        "int16",
        tuple(((7, 700 + row), (3, 1148 - row), (9, 200)) for row in range(4)),
        tuple(((7, 600 + row), (3, 1348 - row), (9, 100)) for row in range(4)),
    ),
    block_sizes=Blocks(
        *(384, 512, 256, 2),
        block_q_major_dkv=640,
        block_k_major_dkv=1024,
        block_k_dkv=128,
        block_q_dkv=320,
        block_k_major_dq=2048,
        block_k_dq=512,
        block_q_dq=136,
    ),
    values="peaked",
    seed=12345,
)

WITH_A_TAIL = resized(BIG, kv_len=2047)


def _reduced(case: Case, faulty: Callable[[Case], bool]) -> Reduced:
    return reduce(case, lambda each: WRONG_O if faulty(each) else None, wanted=WRONG_O)


def _key_blocks(case: Case) -> int:
    return 1 if case.block_sizes is None else case.kv_len // case.block_sizes.block_k_major


def _ids(case: Case) -> int:
    assert case.segments is not None
    return len({label for row in case.segments.kv for label, _ in row})


PLAIN = Case(1, 1, 1, 1, 1)
FAULTS: dict[str, tuple[Callable[[Case], bool], Callable[[Case], bool]]] = {
    "always": (lambda case: True, lambda least: least == PLAIN),
    "causal": (
        lambda case: case.causal and case.kv_len > 1,
        lambda least: least == replace(PLAIN, causal=True, kv_len=2),
    ),
    "heads": (
        lambda case: case.heads > 1 and case.bias is not None,
        lambda least: least == replace(PLAIN, heads=2, bias=Bias("float32", "normal")),
    ),
    "key_blocks": (
        lambda case: _key_blocks(case) > 1,
        lambda least: (
            least.configuration[:6] == (1, 1, 1, 256, 1, "float32")
            and least.block_sizes == Blocks(1, 128, 128, 1)
        ),
    ),
    "tail": (
        lambda case: case.kv_len > 128 and case.kv_len % 128 != 0,
        lambda least: least == replace(PLAIN, kv_len=129),
    ),
    "segments": (
        lambda case: case.segments is not None and _ids(case) > 1,
        lambda least: (
            least.configuration[:6] == (1, 1, 1, 2, 1, "float32")
            and least.segments == Segments("int32", (((0, 1),),), (((0, 1), (1, 1)),))
        ),
    ),
    "bfloat16": (
        lambda case: case.dtype == "bfloat16" and case.head_dim >= 64,
        lambda least: least == replace(PLAIN, dtype="bfloat16", head_dim=64),
    ),
    "an_odd_length": (
        lambda case: case.q_len >= 167,
        lambda least: least == replace(PLAIN, q_len=167),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_least_case_is_found_in_few_small_runs(name: str) -> None:
    faulty, is_least = FAULTS[name]
    ran: list[Case] = []

    def observed(case: Case) -> bool:
        ran.append(case)
        return faulty(case)

    reduced = _reduced(WITH_A_TAIL if name == "tail" else BIG, observed)

    assert reduced.case is not None
    assert is_least(reduced.case), reduced.case
    assert reduced.runs <= 60
    assert reduced.complete
    # The reported case would take a minute, and gigabytes.
    assert BIG not in ran
    assert not any(map(start.slow, ran))


def test_only_legal_calls_are_tried() -> None:
    """Whatever fails last: at a minimum every move is tried."""
    tried: set[Case] = set()

    def faulty(wanted: Callable[[Case], bool]) -> Callable[[Case], bool]:
        def observed(case: Case) -> bool:
            tried.add(case)
            return wanted(case)

        return observed

    for wanted, _ in FAULTS.values():
        for case in (BIG, WITH_A_TAIL):
            _reduced(case, faulty(wanted))

    assert len(tried) > 100
    for case in tried:
        given = shapes(case)
        segments = blocks = None
        if given.q_segment_ids is not None:
            segments = SegmentIds(given.q_segment_ids, given.kv_segment_ids)
            assert Case.from_json(case.to_dict()) == case
        if case.block_sizes is not None:
            blocks = types.SimpleNamespace(**vars(case.block_sizes))
        refusal = contract.call_refusal(
            *given[:4], segments, sm_scale=case.sm_scale, block_sizes=blocks
        )
        assert refusal is None, case


def test_it_does_not_slip_to_another_fault() -> None:
    def fails(case: Case) -> Signature | None:
        if case.kv_len >= 8 and case.causal:
            return WRONG_O
        return Signature("outputs", "call", "ValueError")

    reduced = reduce(BIG, fails, wanted=WRONG_O)

    assert reduced.case == replace(PLAIN, causal=True, kv_len=8)
    assert reduced.signature == WRONG_O
    outcomes = {(each["feature"], each["to"]): each["outcome"] for each in reduced.explanation}
    assert outcomes["causal", "no"] == "fails otherwise"
    assert outcomes["kv_len", "7"] == "fails otherwise"
    assert outcomes["kv_len", "9"] == "fails"
    assert outcomes["dtype", "bfloat16"] == "fails"


def test_what_fails_otherwise_than_reported_is_reduced_as_it_fails() -> None:
    other = Signature("outputs", "call", "TypeError")

    reduced = reduce(BIG, lambda case: other if case.causal else None, wanted=WRONG_O)

    assert reduced.signature == other
    assert reduced.case == replace(PLAIN, causal=True)
    assert reduced.steps[0].what == "fails, but otherwise than reported"


def test_a_bare_case_is_reduced_by_the_first_failure() -> None:
    reduced = reduce(replace(PLAIN, kv_len=9), lambda case: WRONG_O if case.kv_len > 2 else None)

    assert reduced.case == replace(PLAIN, kv_len=3)
    assert reduced.signature == WRONG_O


def test_the_reported_case_is_run_when_nothing_smaller_fails() -> None:
    waited: list[Case] = []

    reduced = reduce(
        BIG,
        lambda case: WRONG_O if case.kv_len >= 2048 and case.heads == 8 else None,
        wanted=WRONG_O,
        waiting=lambda what, case: waited.append(case),
    )

    assert waited[-1] == BIG
    assert reduced.case is not None
    assert reduced.case.configuration[:5] == (1, 8, 1, 2048, 1)


def test_what_holds_is_not_reduced() -> None:
    reduced = _reduced(BIG, lambda case: False)

    assert reduced.case is None
    assert reduced.explanation == []


def test_limits_end_the_search_with_what_it_has() -> None:
    few = reduce(BIG, lambda case: WRONG_O, wanted=WRONG_O, most=4)
    late = reduce(BIG, lambda case: WRONG_O, wanted=WRONG_O, deadline=time.monotonic())

    assert few.runs == 4
    assert few.case is not None
    assert not few.complete
    assert late.runs == 0
    assert late.case is None


def test_a_case_that_is_none_of_the_property_is_said() -> None:
    def fails(case: Case) -> Signature | None:
        raise CaseError("parameters.row: missing")

    with pytest.raises(CaseError, match="row"):
        reduce(PLAIN, fails)


@pytest.mark.parametrize(
    ("parameters", "sizes", "fitted"),
    [
        ({"row": 2000}, {"q_len": 9}, {"row": 8}),
        ({"batch_order": [3, 1, 0, 2]}, {"batch": 2}, {"batch_order": [1, 0]}),
        ({"head_order": [7, 6, 5, 4, 3, 2, 1, 0]}, {"heads": 3}, {"head_order": [2, 1, 0]}),
        ({"copy": [3, 1]}, {"batch": 2}, {"copy": [0, 1]}),
        ({"cut": 3}, {"batch": 2}, {"cut": 1}),
        ({"cut": [1024, 512]}, {"q_len": 8, "kv_len": 8}, {"cut": [4, 2]}),
        ({"labels": [5, 6, 7]}, {"q_len": 1, "kv_len": 1}, {"labels": [6]}),
        ({"other_blocks": "get_default"}, {"q_len": 9}, {"other_blocks": "get_default"}),
    ],
)
def test_parameters_follow_the_dimensions(
    parameters: dict[str, object], sizes: dict[str, int], fitted: dict[str, object]
) -> None:
    assert resized(replace(BIG, parameters=parameters), **sizes).parameters == fitted  # type: ignore[arg-type]


def test_other_blocks_stay_legal() -> None:
    other = Blocks(8, 1024, 128, 4).fields()

    small = resized(replace(BIG, parameters={"other_blocks": other}), q_len=16, kv_len=256)

    assert small.parameters["other_blocks"] == {
        "block_q": 8,
        "block_k_major": 128,
        "block_k": 128,
        "block_b": 4,
    }


def test_what_names_an_array_goes_with_it() -> None:
    case = replace(BIG, parameters={"gradient_of": ["q", "ab"]})

    without_bias = next(move for move in moves.features(case) if move.feature == "bias").case

    assert without_bias.parameters == {"gradient_of": ["q"]}


def test_a_way_to_break_a_rule_is_one_of_the_smaller_case() -> None:
    case = Case(2, 2, 24, 256, 8, breaks="kv_len_mismatch", parameters={"argument": "v", "size": 7})

    small = resized(case, kv_len=2)

    assert dict(small.parameters) in list(BREAKERS["kv_len_mismatch"].ways(small))


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ({"output": "dk", "index": [0], "message": "is beyond the bound"}, ("dk", "")),
        ({"output": "dk", "index": [0], "message": "is not finite"}, ("dk", "")),
        ({"output": "o", "message": "has dtype float64, must have float32"}, ("o", None)),
        (
            {"output": "call", "message": "running in numpy raised KernelFault: at 12"},
            ("call", "KernelFault"),
        ),
        (
            {"output": "process", "message": "was ended by SIGSEGV"},
            ("process", "was ended by SIGSEGV"),
        ),
        (
            {"output": "process", "message": "gave nothing within 17 s"},
            ("process", "gave nothing within N s"),
        ),
    ],
)
def test_signatures(verdict: dict[str, object], expected: tuple[str, str | None]) -> None:
    signature = Signature.of({"property": "outputs", "verdict": verdict})

    assert signature is not None
    assert signature.output == expected[0]
    assert expected[1] in (signature.kind, None)


@pytest.mark.parametrize("report", [{}, {"property": "outputs"}, {"verdict": {"output": "o"}}])
def test_no_verdict_no_signature(report: dict[str, object]) -> None:
    assert Signature.of(report) is None
