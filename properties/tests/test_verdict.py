"""The comparator cannot be fooled: every wrong result fails, and a right one passes."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oracle
from properties.cases.case import Case, Segments
from properties.judging.verdict import Verdict, compare

OUTPUTS = ("o", "l", "m", "lse", "dq", "dk", "dv", "dab")
STATISTICS = ("l", "m", "lse")
DTYPES = {"float32": np.dtype("float32"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@cache
def _truth(dtype: str, seed: int = 0, hidden: bool = False) -> oracle.Truth:
    # Equal lengths: a transposed or swapped result still has the right shape.
    segments = None
    if hidden:
        # The first two queries see no key.
        segments = Segments("int32", (((1, 2), (0, 14)),) * 2, (((0, 16),),) * 2)
    case = Case(2, 2, 16, 16, 16, dtype, sm_scale=0.25, segments=segments, seed=seed)
    arrays = case.arrays()
    ids = None if segments is None else (arrays.q_segment_ids, arrays.kv_segment_ids)
    return oracle.Truth(
        *(arrays.q, arrays.k, arrays.v, None, ids, arrays.do),
        sm_scale=case.sm_scale,
        arithmetic=oracle.Arithmetic.of(dtype),
    )


def _right(dtype: str, output: str, **of: int | bool) -> np.ndarray:
    stored = "float32" if output in STATISTICS else dtype
    return _truth(dtype, **of).values[output].astype(DTYPES[stored])


def _judged(dtype: str, output: str, got: object) -> Verdict:
    truth = _truth(dtype)
    stored = "float32" if output in STATISTICS else dtype
    kernel_m = truth.values["m"].astype(np.float32)
    return compare(truth, output, got, dtype=stored, kernel_m=kernel_m)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_truth_rounded_passes(dtype: str, output: str) -> None:
    verdict = _judged(dtype, output, _right(dtype, output))

    assert verdict.passed, verdict
    assert verdict.elements == _truth(dtype).values[output].size


def _one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def with_one_element(right: np.ndarray) -> np.ndarray:
        wrong = right.copy()
        wrong[1, 0, 3] = value
        return wrong

    return with_one_element


WRONG: dict[str, Callable[[np.ndarray], object]] = {
    "all zero": np.zeros_like,
    "all NaN": lambda right: np.full_like(right, np.nan),
    "one NaN": _one(np.nan),
    "one infinity": _one(np.inf),
    "one zero": _one(0.0),
    "heads swapped": lambda right: right[:, ::-1],
    "batch swapped": lambda right: right[::-1],
    "rows swapped": lambda right: right[:, :, ::-1],
    "rows off by one": lambda right: np.roll(right, 1, axis=2),
    "batch and heads transposed": lambda right: np.swapaxes(right, 0, 1),
    "negated": np.negative,
    "scaled": lambda right: (right.astype(np.float64) * 1.5).astype(right.dtype),
    "float64": lambda right: right.astype(np.float64),
    "float16": lambda right: right.astype(np.float16),
    "one row for all": lambda right: np.broadcast_to(right[:, :, :1], right.shape),
    "a scalar": lambda right: right.dtype.type(right.mean()),
    "one element": lambda right: right[:1, :1, :1],
    "an axis more": lambda right: right[None],
    "flat": np.ravel,
    "a list": lambda right: right.tolist(),
    "nothing": lambda right: None,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("fault", WRONG)
def test_wrong_result_fails(dtype: str, output: str, fault: str) -> None:
    verdict = _judged(dtype, output, WRONG[fault](_right(dtype, output)))

    assert not verdict.passed
    assert verdict.message


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_result_of_previous_case_fails(dtype: str, output: str) -> None:
    assert not _judged(dtype, output, _right(dtype, output, seed=1)).passed


@pytest.mark.parametrize("output", ["o", "dq", "dk", "dv", "dab"])
def test_each_dtype_is_told_from_the_other(output: str) -> None:
    verdict = _judged("bfloat16", output, _right("float32", output))

    assert "must have bfloat16" in verdict.message


def test_worst_element_is_shown() -> None:
    got = _right("float32", "o")
    got[1, 0, 3, 5] += 1.0

    verdict = _judged("float32", "o", got)

    assert verdict.index == (1, 0, 3, 5)
    assert verdict.got is not None
    assert verdict.got - 1.0 == pytest.approx(verdict.expected)
    assert verdict.ratio is not None
    assert verdict.ratio > 1.0
    assert "1 of 1024" in verdict.message


def test_row_that_may_be_anything_must_be_finite() -> None:
    truth = _truth("float32", hidden=True)
    anything = _right("float32", "o", hidden=True)
    anything[:, :, :2] = 7.0
    infinite = anything.copy()
    infinite[0, 0, 0, 0] = np.inf

    def judged(got: np.ndarray, rows: np.ndarray | None) -> Verdict:
        return compare(truth, "o", got, dtype="float32", judged_rows=rows)

    assert judged(anything, truth.rows).passed
    assert judged(anything, truth.rows).elements == anything.size * 14 // 16
    assert not judged(anything, None).passed
    assert not judged(infinite, truth.rows).passed


def test_statistics_of_a_row_that_sees_nothing_mean_nothing() -> None:
    truth = _truth("float32", hidden=True)
    m = _right("float32", "m", hidden=True)
    m[:, :, :2] = -np.inf

    assert compare(truth, "m", m, dtype="float32", judged_rows=truth.rows).passed


class _Blind:
    """Stands in for a truth whose bound says nothing, or is none."""

    def __init__(self, bound: float, ratio: float) -> None:
        self._bound, self._ratio = bound, ratio

    def value(self, output: str) -> np.ndarray:
        return np.zeros((1, 1, 2, 2))

    def bound(self, output: str) -> np.ndarray:
        return np.full((1, 1, 2, 2), self._bound)

    def ratio(self, output: str, got: np.ndarray, m: np.ndarray | None) -> np.ndarray:
        return np.full((1, 1, 2, 2), self._ratio)


def test_element_without_a_bound_is_not_counted() -> None:
    blind: Any = _Blind(np.inf, 0.0)

    assert compare(blind, "o", np.zeros((1, 1, 2, 2)), dtype="float64").elements == 0


def test_bound_that_is_no_number_fails() -> None:
    blind: Any = _Blind(np.nan, np.nan)

    assert not compare(blind, "o", np.zeros((1, 1, 2, 2)), dtype="float64").passed


def test_report_holds_what_json_cannot_as_text() -> None:
    verdict = _judged("float32", "o", WRONG["all NaN"](_right("float32", "o")))

    record = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))

    assert record["got"] == "nan"
    assert record["ratio"] == "inf"
    assert set(record) == {"output", "index", "got", "expected", "bound", "ratio", "message"}
