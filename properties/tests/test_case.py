"""Cases survive JSON, refuse what is not a case, and make the arrays they promise."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from properties.cases import tensors
from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.drawing import strategies

PLAIN = Case(1, 2, 8, 9, 4)
FULL = Case(
    batch=2,
    heads=1,
    q_len=3,
    kv_len=128,
    head_dim=8,
    dtype="bfloat16",
    causal=True,
    sm_scale=0.1,
    bias=Bias("float32", "inf_columns"),
    segments=Segments("int8", (((0, 3),), ((0, 1), (-5, 2))), (((0, 128),), ((7, 28), (-5, 100)))),
    block_sizes=Blocks(3, 128, 128, 2),
    values="peaked",
    seed=2**64 - 1,
    parameters={"gradient_of": ["q", "ab"]},
)


@settings(max_examples=100, database=None, deadline=None)
@given(strategies.gradient_cases())
def test_every_drawn_case_survives_json(case: Case) -> None:
    line = case.to_json()

    assert "\n" not in line
    assert Case.from_json(line) == case
    assert Case.from_json(json.loads(line)).to_json() == line


@pytest.mark.parametrize(
    "case", [PLAIN, FULL, replace(PLAIN, breaks="empty"), replace(PLAIN, tensors="a.npz")]
)
def test_every_field_survives_json(case: Case) -> None:
    assert Case.from_json(case.to_json()) == case


def test_repr_is_code_that_makes_the_case() -> None:
    assert eval(repr(FULL)) == FULL


def test_optional_fields_may_be_left_out() -> None:
    record = FULL.to_dict()
    for name in ("breaks", "parameters", "tensors"):
        record.pop(name, None)
    del record["segments"]["dtype"]

    case = Case.from_json(record)

    assert case.segments is not None
    assert (case.breaks, case.parameters, case.tensors, case.segments.dtype) == (
        None,
        {},
        None,
        "int32",
    )


BAD = [
    ("batch", 0, "batch: got 0; must be at least 1"),
    ("heads", True, "heads: got true; expected an integer"),
    ("q_len", 2.0, "q_len: got 2.0; expected an integer"),
    ("kv_len", "9", 'kv_len: got "9"; expected an integer'),
    ("head_dim", None, "head_dim: got null; expected an integer"),
    ("dtype", "float16", 'dtype: got "float16"; expected one of float32, bfloat16'),
    ("causal", 1, "causal: got 1; expected true or false"),
    ("sm_scale", float("nan"), "sm_scale: got NaN; expected a number finite in float32"),
    ("sm_scale", 1e39, "sm_scale: got 1e+39; expected a number finite in float32"),
    ("sm_scale", 10**400, "sm_scale: got 1"),
    ("sm_scale", False, "sm_scale: got false; expected a number"),
    ("bias", "normal", 'bias: got "normal"; expected an object'),
    ("bias", {"dtype": "float32"}, "bias.family: missing"),
    ("bias", {"dtype": "float32", "family": "odd"}, 'bias.family: got "odd"; expected one of'),
    ("bias", {"dtype": "float32", "family": "normal", "x": 1}, "bias.x: unknown field"),
    ("segments", {"q": [[[0, 8]]]}, "segments.kv: missing"),
    ("segments", {"q": [[[0, 7]]], "kv": []}, "segments.q[0]: runs cover 7 positions, not 8"),
    ("segments", {"q": [], "kv": []}, "segments.q: 0 rows, but batch is 1"),
    ("segments", {"q": [[[0, 8, 1]]], "kv": []}, "segments.q[0][0]: got [0, 8, 1]"),
    ("segments", {"q": [[[0, 0]]], "kv": []}, "segments.q[0][0]: got 0; must be at least 1"),
    (
        "segments",
        {"dtype": "int8", "q": [[[128, 8]]], "kv": []},
        "segments.q[0][0]: got 128; must be below 128",
    ),
    ("segments", {"dtype": "int64", "q": [], "kv": []}, 'segments.dtype: got "int64"'),
    ("block_sizes", {"block_q": 8}, "block_sizes.block_k_major: missing"),
    (
        "block_sizes",
        {"block_q": None, "block_k_major": 1, "block_k": 1, "block_b": 1},
        "block_sizes.block_q: got null; expected an integer",
    ),
    ("values", "gaussian", 'values: got "gaussian"; expected one of normal'),
    ("seed", -1, "seed: got -1; must be at least 0"),
    ("seed", 2**64, "seed: got 18446744073709551616; must be below"),
    ("breaks", "everything", 'breaks: got "everything"; expected one of'),
    ("parameters", [1], "parameters: got [1]; expected an object"),
    ("parameters", {"x": float("inf")}, "parameters: "),
    ("tensors", "../a.npz", 'tensors: got "../a.npz"; expected the bare name of a file'),
    ("schema", 2, "schema: got 2; this program reads schema 1"),
    ("colour", 1, "colour: unknown field"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_bad_field_is_named_in_one_line(name: str, value: object, message: str) -> None:
    with pytest.raises(CaseError) as caught:
        Case.from_json({**PLAIN.to_dict(), name: value})

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in PLAIN.to_dict() if name != "parameters"])
def test_a_missing_field_is_named(name: str) -> None:
    record = PLAIN.to_dict()
    del record[name]

    with pytest.raises(CaseError, match=f"^{name}: missing$"):
        Case.from_json(record)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"batch": NaN}',
        '{"a": 1, "a": 2}',
        '{"a\\nb": 1}',
        "[" * 100_000,
    ],
)
def test_what_is_no_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(CaseError) as caught:
        Case.from_json(text)

    assert "\n" not in str(caught.value)


def test_configuration_leaves_out_what_a_trace_does_not_see() -> None:
    other_data = replace(
        FULL,
        seed=1,
        values="integers",
        bias=Bias("float32", "normal"),
        segments=Segments("int8", (((9, 3),),) * 2, (((9, 128),),) * 2),
        parameters={},
    )

    assert other_data.configuration == FULL.configuration
    assert hash(other_data.configuration) == hash(FULL.configuration)
    assert replace(FULL, sm_scale=0.2).configuration != FULL.configuration
    assert replace(FULL, bias=Bias("bfloat16", "normal")).configuration != FULL.configuration


def test_arrays_have_the_shapes_and_dtypes_of_the_case() -> None:
    arrays = FULL.arrays()

    assert arrays.ab is not None
    assert arrays.q_segment_ids is not None
    assert arrays.kv_segment_ids is not None
    assert arrays.q.shape == arrays.do.shape == (2, 1, 3, 8)
    assert arrays.k.shape == arrays.v.shape == (2, 1, 128, 8)
    assert {array.dtype for array in (arrays.q, arrays.k, arrays.v, arrays.do)} == {
        np.dtype(ml_dtypes.bfloat16)
    }
    assert (arrays.ab.shape, arrays.ab.dtype) == ((2, 1, 3, 128), np.float32)
    assert arrays.q_segment_ids.dtype == arrays.kv_segment_ids.dtype == np.int8
    assert arrays.q_segment_ids.tolist() == [[0, 0, 0], [0, -5, -5]]
    assert arrays.kv_segment_ids[1].tolist() == [7] * 28 + [-5] * 100


def test_features_do_not_change_the_other_arrays() -> None:
    with_all, without = (
        FULL.arrays(),
        replace(FULL, bias=None, segments=None, causal=False).arrays(),
    )

    for name in ("q", "k", "v", "do"):
        assert np.array_equal(getattr(with_all, name), getattr(without, name)), name


def test_tensors_stand_in_for_values_and_seed(tmp_path) -> None:
    arrays = FULL.arrays()
    tensors.write(tmp_path / "real.npz", arrays._asdict())
    case = replace(FULL, tensors="real.npz", values="normal", seed=0)
    (tmp_path / "case.json").write_text(case.to_json())

    loaded = Case.load(tmp_path / "case.json")

    assert loaded == case
    for name, array in loaded.arrays()._asdict().items():
        assert array.dtype == getattr(arrays, name).dtype
        assert np.array_equal(array, getattr(arrays, name)), name


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({}, "real.npz holds no q"),
        ({"q": np.zeros((1, 2, 7, 4), np.float32)}, r"q has shape \(1, 2, 7, 4\); the case says"),
        ({"q": np.zeros((1, 2, 8, 4), np.float64)}, "q is stored as float64; float32 is stored as"),
        ({"ab": np.zeros((1, 2, 8, 9), np.float32)}, "real.npz holds ab, but the case has none"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, stored, message) -> None:
    kept = {"q": PLAIN.arrays().q, "k": PLAIN.arrays().k, "v": PLAIN.arrays().v}
    tensors.write(tmp_path / "real.npz", {**kept, **stored} if stored else {"k": kept["k"]})

    with pytest.raises(CaseError, match=f"^tensors: {message}"):
        replace(PLAIN, tensors="real.npz", folder=tmp_path).arrays()


def test_a_missing_or_broken_file_is_one_line(tmp_path) -> None:
    (tmp_path / "text.npz").write_text("not an archive")

    for name in ("nowhere.npz", "text.npz"):
        with pytest.raises(CaseError, match=r"^tensors: .*cannot be read as \.npz") as caught:
            replace(PLAIN, tensors=name, folder=tmp_path).arrays()
        assert "\n" not in str(caught.value)
    with pytest.raises(CaseError, match=r"nowhere\.json: cannot be read"):
        Case.load(tmp_path / "nowhere.json")
