"""The bounds: correct kernels stay within, in every family; faulty ones do not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracle import Arithmetic, Truth
from oracle.tests.emulation import F32, Kernel, sequential_dot, visible_keys
from oracle.tests.families import BIASES, SCALES, VALUES, Inputs, inputs

KERNELS = {
    "online": Kernel(),
    "one tile": Kernel(block_k=10**6, block_q=10**6),
    "per step": Kernel(normalises_each_tile=True),
    "sequential": Kernel(block_k=8, dot=sequential_dot),
    "exp2, lse": Kernel(exp2=True, saves_lse=True),
    "flushing": Kernel(block_k=8, flushes=True, normalises_each_tile=True),
}


def arithmetic(kernel: Kernel, x: Inputs) -> Arithmetic:
    return Arithmetic.of(
        x.q.dtype.name,
        kv_tiles=-(-x.k.shape[2] // kernel.block_k),
        q_tiles=-(-x.q.shape[2] // kernel.block_q),
        operands="bfloat16" if kernel.rounds_inputs else "exact",
        saves_lse=kernel.saves_lse,
    )


def worst_ratios(x: Inputs, kernel: Kernel, model: Arithmetic | None = None) -> dict[str, float]:
    """Largest ratio of each output, gradients both end to end and conditional."""
    visible = visible_keys(x)
    with np.errstate(all="ignore"):
        o, total, peak = kernel.forward(x, visible)
        grads = kernel.backward(x, visible, o, total, peak)
        lse = peak + np.log(total)
    truth = Truth(**x.call(), arithmetic=model or arithmetic(kernel, x))
    saved = (o, lse) if kernel.saves_lse else (o, total, peak)
    ratios = {
        "o": truth.ratio("o", o),
        "m": truth.ratio("m", peak),
        "l": truth.ratio("l", total, m=peak),
        "lse": truth.ratio("lse", lse),
    }
    given = truth.given(saved)
    for name, got in grads.items():
        ratios[name] = truth.ratio(name, got)
        ratios[name + " conditional"] = given.ratio(name, got)
    return {name: float(ratio.max()) for name, ratio in ratios.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("values", VALUES)
def test_correct_kernels_stay_within(values: str, dtype: str) -> None:
    for seed, (name, kernel) in enumerate(KERNELS.items()):
        for bias_kind in BIASES:
            x = inputs(seed, values, dtype, bias_kind=bias_kind, segments=seed % 3 == 2)
            worst = worst_ratios(x, kernel)
            assert max(worst.values()) < 1, (name, bias_kind, worst)


@pytest.mark.parametrize("sm_scale", SCALES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_correct_kernels_stay_within_at_any_scale(sm_scale: float, dtype: str) -> None:
    for (seed, bias_kind), kernel in itertools.product(enumerate(BIASES), KERNELS.values()):
        worst = worst_ratios(
            inputs(seed, "normal", dtype, bias_kind=bias_kind, sm_scale=sm_scale), kernel
        )
        assert max(worst.values()) < 1, (kernel, bias_kind, worst)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 1, 5, 1, 3), (1, 2, 1, 9, 1), (1, 1, 30, 7, 65)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_correct_kernels_stay_within_at_any_shape(shape: tuple, dtype: str) -> None:
    for seed, kernel in enumerate(KERNELS.values()):
        for values in VALUES:
            worst = worst_ratios(inputs(seed, values, dtype, shape=shape), kernel)
            assert max(worst.values()) < 1, (kernel, values, worst)


@pytest.mark.parametrize("values", VALUES)
def test_rounded_operands_stay_within_whether_repeated_or_bounded(values: str) -> None:
    x = inputs(3, values, "float32")
    kernel = Kernel(rounds_inputs=True)
    unknown = Arithmetic(product=0, operand=2.0**-8, kv_tiles=3, q_tiles=2)
    for model in (None, unknown):
        worst = worst_ratios(x, kernel, model)
        assert max(worst.values()) < 1, (model, worst)


def test_most_rows_can_be_tested() -> None:
    # A key of the lowest finite bias says nothing against its row, unless all keys are such.
    for values, bias_kind in itertools.product(VALUES, BIASES):
        x = inputs(0, values, "bfloat16", bias_kind=bias_kind)
        truth = Truth(**x.call(), arithmetic=Arithmetic.of("bfloat16", kv_tiles=3))
        expected = np.zeros(x.q.shape[:3], bool)
        if bias_kind == "lowest_rows":
            expected[:, :, ::2] = True
        assert np.array_equal(truth.untested_rows, expected), (values, bias_kind)
        for name, bound in truth.bounds.items():
            rows = truth.rows & ~expected
            if name in ("o", "l", "m", "lse", "dq", "dab"):
                assert np.all(np.isfinite(bound[rows])), (values, bias_kind, name)
            assert not np.any(np.isnan(bound)), (values, bias_kind, name)


def test_rows_that_cannot_be_tested_leave_the_rest_testable() -> None:
    x = inputs(0, "normal", "float32", bias_kind="lowest_rows")
    model = Arithmetic.of("float32")
    everywhere = Truth(**x.call(), arithmetic=model)
    assert np.all(np.isinf(everywhere.bounds["dk"]))
    do = np.where(everywhere.untested_rows[..., None], 0, x.do)
    truth = Truth(**dataclasses.replace(x, do=do).call(), arithmetic=model)
    assert all(np.all(np.isfinite(truth.bounds[name])) for name in ("dq", "dk", "dv", "dab"))


def test_hidden_positions_influence_nothing() -> None:
    # The last third of the keys is hidden from all rows by segments: any finite bfloat16 there.
    x = inputs(0, "normal", "bfloat16", shape=(1, 1, 12, 18, 4), bias_kind="normal")
    ids = (np.zeros((1, 12), np.int32), np.repeat(np.array([0, 1], np.int32), (12, 6))[None])
    x = dataclasses.replace(x, segment_ids=ids)
    k, v, ab = x.k.copy(), x.v.copy(), x.ab.copy()
    k[:, :, 12:] = v[:, :, 12:] = ml_dtypes.finfo(k.dtype).max
    ab[..., 12:] = np.resize([np.nan, np.inf, -np.inf], 6)
    model = Arithmetic.of("bfloat16")
    clean = Truth(**x.call(), arithmetic=model)
    dirty = Truth(**dataclasses.replace(x, k=k, v=v, ab=ab).call(), arithmetic=model)
    for name, value in clean.values.items():
        assert np.array_equal(value, dirty.values[name]), name
        finite = clean.bounds[name]
        # The range of v bounds nothing here, but for that the bounds see no hidden key either.
        assert np.allclose(finite, dirty.bounds[name], rtol=1e-12, atol=0), name


def test_exact_zeros_are_required() -> None:
    x = inputs(1, "normal", "float32", shape=(1, 1, 6, 8, 4), bias_kind="infinite_rows")
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    nobody, nothing = np.s_[:, :, 6:], np.s_[:, :, ::2]
    assert np.array_equal(truth.rows[0, 0], [False, True] * 3)
    for name, where in (("o", nothing), ("dq", nothing), ("dk", nobody), ("dv", nobody)):
        assert np.all(truth.values[name][where] == 0), name
        assert np.all(truth.bounds[name][where] == 0), name
    assert np.all(truth.bounds["dab"][~truth.visible] == 0)
    assert np.all(truth.bounds["dab"][truth.visible] > 0)
    for name in ("l", "m", "lse"):
        assert np.all(np.isinf(truth.bounds[name][nothing])), name


def without_a_key(x: Inputs) -> np.ndarray:
    ab = np.zeros((*x.q.shape[:3], x.k.shape[2]), F32)
    ab[..., 5] = -np.inf
    return ab


FAULTS: dict[str, Callable[[Inputs], dict[str, Any]]] = {
    "a key dropped": lambda x: {"ab": without_a_key(x)},
    "heads swapped": lambda x: {"k": x.k[:, ::-1]},
    "keys swapped": lambda x: {"v": np.roll(x.v, 1, axis=2)},
    "causal ignored": lambda x: {"causal": not x.causal},
    "scale off by 1/1000": lambda x: {"sm_scale": x.sm_scale * 1.001},
    "cotangent stale": lambda x: {"do": np.roll(x.do, 1, axis=2)},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_exceed_the_bound(fault: str, dtype: str) -> None:
    x = inputs(0, "normal", dtype)
    kernel = Kernel()
    asked = dataclasses.replace(x, **FAULTS[fault](x))
    with np.errstate(all="ignore"):
        visible = visible_keys(asked)
        o, total, peak = kernel.forward(asked, visible)
        grads = kernel.backward(asked, visible, o, total, peak)
    truth = Truth(**x.call(), arithmetic=arithmetic(kernel, x))
    given = truth.given((o, total, peak))
    worst = {"o": truth.ratio("o", o), "l": truth.ratio("l", total, m=peak)}
    worst |= {name: given.ratio(name, got) for name, got in grads.items()}
    assert max(ratio.max() for ratio in worst.values()) > 2, worst
    assert max(ratio.max() for name, ratio in worst.items() if name.startswith("d")) > 2


@pytest.mark.parametrize("output", ["o", "l", "m", "dq", "dk", "dv", "dab"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zeros_nans_swapped_and_scaled_outputs_exceed_the_bound(output: str, dtype: str) -> None:
    x = inputs(0, "normal", dtype, bias_kind="normal")
    truth = Truth(**x.call(), arithmetic=Arithmetic.of(dtype, kv_tiles=3))
    right = truth.values[output]
    right = right.astype(x.q.dtype if output in ("o", "dq", "dk", "dv") else F32)
    wrong = {
        "zero": np.zeros_like(right),
        "nan": np.full_like(right, np.nan),
        "infinite": np.full_like(right, np.inf),
        "heads": right[:, ::-1],
        "rows": np.roll(right, 1, axis=2),
        "scaled": (right.astype(F32) * F32(1.05)).astype(right.dtype),
        "negated": -right,
    }
    m = truth.values["m"]
    assert truth.ratio(output, right, m=m).max() < 1
    for name, got in wrong.items():
        assert truth.ratio(output, got, m=m).max() > 2, name
    one_nan = right.copy()
    one_nan.flat[7] = np.nan
    assert np.isinf(truth.ratio(output, one_nan, m=m).flat[7])
