"""Formats, rounding and cells: against every bfloat16 number there is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from oracle.rounding import BFLOAT16, FLOAT32, SMALLEST_NORMAL, Arithmetic, distance

BF16 = ml_dtypes.bfloat16
F32 = np.float32


@pytest.fixture(scope="module")
def every_bfloat16() -> np.ndarray:
    bits = np.arange(2**16, dtype=np.uint16)
    return bits[(bits & 0x7FFF) <= 0x7F80].view(BF16)  # all but NaN


def test_cell_ends_are_where_rounding_changes(every_bfloat16: np.ndarray) -> None:
    # Just inside the cell of x everything rounds to x, just outside nothing does; the ends
    # themselves are ties. Zero and the subnormals' flushing are tested by themselves.
    values = every_bfloat16[every_bfloat16 != 0]
    numbers = values.astype(np.float64)
    low, high = BFLOAT16.cell(numbers)
    finite = np.isfinite(numbers)
    assert np.all(low[finite] < numbers[finite])
    assert np.all(numbers[finite] < high[finite])
    for exact, inwards in ((low, np.inf), (high, -np.inf)):
        bounded = np.isfinite(exact)
        end, expected = exact[bounded].astype(np.float32), values[bounded]
        assert np.array_equal(end, exact[bounded])
        inside, outside = np.nextafter(end, F32(inwards)), np.nextafter(end, F32(-inwards))
        assert np.array_equal(inside.astype(BF16), expected)
        assert not np.any(outside.astype(BF16) == expected)


def test_neighbouring_cells_meet(every_bfloat16: np.ndarray) -> None:
    ordered = np.sort(every_bfloat16[every_bfloat16 > 0].astype(np.float64))
    low, high = BFLOAT16.cell(ordered)
    assert np.array_equal(high[:-1], low[1:])


def test_zero_stands_for_whatever_may_be_flushed() -> None:
    for zero in (0.0, -0.0):
        assert BFLOAT16.cell(np.array(zero)) == (-SMALLEST_NORMAL, SMALLEST_NORMAL)


def test_rounding_agrees_with_the_cast() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    numbers = bits[np.isfinite(bits)]
    ties = (np.arange(2**16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    for values in (numbers, ties[np.isfinite(ties)]):
        expected = values.astype(BF16).astype(np.float64)
        assert np.array_equal(BFLOAT16.round(values.astype(np.float64)), expected)
    doubles = rng.standard_normal(10_000) * np.exp2(rng.uniform(-140, 120, 10_000))
    assert np.array_equal(FLOAT32.round(doubles), doubles.astype(np.float32).astype(np.float64))


def test_float32_cells_hold_what_rounds_to_them() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(10_000) * np.exp2(rng.uniform(-100, 120, 10_000))
    rounded = FLOAT32.round(values)
    low, high = FLOAT32.cell(rounded)
    assert np.all((low <= values) & (values <= high))
    assert np.all(high - low <= 2.0**-23 * np.abs(rounded))


def test_unit_roundoff_is_the_worst_relative_error(every_bfloat16: np.ndarray) -> None:
    normal = np.abs(every_bfloat16.astype(np.float64))
    normal = normal[(normal >= SMALLEST_NORMAL) & np.isfinite(normal)]
    worst = np.max(BFLOAT16.half_ulp(normal) / normal)
    assert worst == 2.0**-8 == BFLOAT16.unit_roundoff
    assert FLOAT32.unit_roundoff == 2.0**-24
    assert np.array_equal(BFLOAT16.half_ulp(np.array([0.0, 2.0**-133])), [2.0**-134] * 2)


def test_distance_forgives_the_cast_and_no_more() -> None:
    truth = np.array([1.0, 1.0 + 2**-8, 1.0 + 2**-7, -1.0 - 2**-9, 1.0 - 2**-9])
    got = np.ones(5, BF16) * np.array([1, 1, 1, -1, 1], BF16)
    assert np.array_equal(distance(truth, got), [0, 0, 2**-8, 0, 0])
    assert np.array_equal(distance(np.array([1 - 2.0**-8]), np.ones(1, BF16)), [2.0**-9])
    assert np.array_equal(distance(truth, np.ones(5, np.float32)), np.abs(truth - 1))
    assert np.isnan(distance(np.array([1.0]), np.array([np.nan], BF16)))[0]


def test_overflowing_results_stand_for_what_overflows() -> None:
    infinity = np.array([np.inf, -np.inf], BF16)
    assert np.array_equal(distance(np.array([3.4e38, -3.4e38]), infinity), [0, 0])
    assert np.all(distance(np.array([1.0, 1.0]), infinity) > 3e38)


def test_arithmetic_of_a_dtype() -> None:
    bf16 = Arithmetic.of("bfloat16", kv_tiles=3)
    assert (bf16.p_to_v, bf16.ds_to_k, bf16.output) == (2**-8, 2**-8, 2**-8)
    assert (bf16.product, bf16.unit, bf16.kv_tiles) == (0.0, 2**-24, 3)
    plain = Arithmetic.of("float32", scaled=False)
    assert (plain.p_to_v, plain.output, plain.product, plain.scale_roundings) == (0, 0, 1, 0)
    rounded = Arithmetic.of("float32", operands="bfloat16")
    assert (rounded.rounds_inputs, rounded.p_to_v, rounded.output) == (True, 2**-8, 0)
    assert Arithmetic.of("bfloat16", sums_rounded_p=True).p_to_sum == 2**-8


@pytest.mark.parametrize(
    ("kwargs", "words"), [({"dtype": "float16"}, "float16"), ({"operands": "tf32"}, "tf32")]
)
def test_unknown_arithmetic_is_refused(kwargs: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Arithmetic.of(**{"dtype": "float32", **kwargs})
