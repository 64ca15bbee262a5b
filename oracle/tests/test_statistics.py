"""Variances, statistics and the emulation: right in size for correct kernels, and sharp."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from oracle import Arithmetic, Truth
from oracle.emulation import Emulation, cast
from oracle.statistics import CAST, NARROW, UNKNOWN, WIDE, Deviations, is_generic, limits
from oracle.tests.emulation import Kernel, visible_keys
from oracle.tests.families import VALUES, Inputs, inputs

SHAPE = (1, 2, 96, 128, 64)
OUTPUTS = ("o", "l", "m", "lse", "dq", "dk", "dv", "dab")
ARITHMETICS = {
    "float32": Arithmetic.of("float32", kv_tiles=3),
    "bfloat16": Arithmetic.of("bfloat16", kv_tiles=2),
    "sums rounded": Arithmetic.of("bfloat16", sums_rounded_p=True),
    "rounds inputs": Arithmetic.of("float32", operands="bfloat16"),
    "saves lse": Arithmetic.of("float32", saves_lse=True),
}


def normal(seed: int, dtype: str, bias_kind: str = "none") -> Inputs:
    return inputs(seed, "normal", dtype, shape=SHAPE, sm_scale=0.125, bias_kind=bias_kind)


def emulated(
    x: Inputs, model: Arithmetic, *, divides_first: bool = False
) -> tuple[dict[str, np.ndarray], Truth]:
    emulation = Emulation(**x.call(), arithmetic=model, divides_first=divides_first)
    forward = emulation.forward()
    saved = ("o", "lse") if model.saves_lse else ("o", "l", "m")
    truth = Truth(**x.call(), arithmetic=model).given(tuple(forward[name] for name in saved))
    return forward | emulation.backward(forward), truth


def kernel_results(x: Inputs, kernel: Kernel) -> dict[str, np.ndarray]:
    visible = visible_keys(x)
    o, total, peak = kernel.forward(x, visible)
    return {"o": o, "l": total, "m": peak} | kernel.backward(x, visible, o, total, peak)


@pytest.mark.parametrize("divides_first", [False, True])
@pytest.mark.parametrize("name", ARITHMETICS)
def test_emulation_is_a_correct_kernel(name: str, divides_first: bool) -> None:
    model = ARITHMETICS[name]
    if divides_first:
        model = dataclasses.replace(model, kv_tiles=1)
    dtype = "bfloat16" if model.output else "float32"
    for seed, bias_kind in enumerate(("none", "normal", "infinite_rows", "infinite_columns")):
        x = inputs(seed, "normal", dtype, bias_kind=bias_kind, segments=seed == 3)
        found, truth = emulated(x, model, divides_first=divides_first)
        for output, got in found.items():
            if output in CAST:
                got = got.astype(x.q.dtype)
            assert truth.ratio(output, got, found["m"]).max() < 1, (bias_kind, output)


@pytest.mark.parametrize("name", ARITHMETICS)
def test_errors_of_the_emulation_are_as_predicted(name: str) -> None:
    model = ARITHMETICS[name]
    dtype = "bfloat16" if model.output else "float32"
    found, truth = emulated(normal(1, dtype), model)
    for output in ("dq", "dk", "dv"):
        spread = truth.predicted_spread(output, dtype)
        rms = Deviations.of(found[output], truth.value(output), spread).rms
        assert rms < limits(model, output, dtype).rms, output
        # Casts to bfloat16 are counted exactly; float32 sums go better than in a random order.
        assert rms > (0.9 if model.p_to_v else 0.3), output


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_correct_kernel_is_within_the_likely_bound(dtype: str, conditional: bool) -> None:
    for seed in range(4):
        x = normal(seed, dtype, bias_kind="normal" if seed % 2 else "none")
        found = kernel_results(x, Kernel(block_k=64))
        truth = Truth(**x.call(), arithmetic=Arithmetic.of(dtype, kv_tiles=2, q_tiles=6))
        if conditional:
            truth = truth.given((found["o"], found["l"], found["m"]))
        assert truth.well_conditioned
        for output, got in found.items():
            likely = truth.likely_bound(output)
            assert truth.ratio(output, got, found["m"], bound=likely).max() < 1, output


def test_likely_bound_is_the_sharper_one() -> None:
    x = normal(0, "float32")
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    for output in OUTPUTS:
        bound, likely = truth.bound(output), truth.likely_bound(output)
        assert np.all(likely <= bound)
        assert np.median(bound[np.isfinite(bound)] / likely[np.isfinite(bound)]) > 1.5, output


def test_nothing_is_likely_of_errors_that_follow_their_argument() -> None:
    x = normal(0, "float32")
    rough = Arithmetic.of("float32", exp_ulps=100.0)
    truth = Truth(**x.call(), arithmetic=rough)

    assert np.array_equal(truth.likely_bound("o"), truth.bound("o"))
    assert limits(rough, "o", "float32") == UNKNOWN
    narrow = Arithmetic.of("bfloat16", exp_ulps=100.0)
    assert limits(narrow, "o", "bfloat16") == NARROW
    assert limits(narrow, "l", "float32") == UNKNOWN


def test_limits_follow_what_dominates_the_error() -> None:
    float32, bfloat16 = ARITHMETICS["float32"], ARITHMETICS["bfloat16"]

    assert limits(float32, "dq", "float32") == WIDE
    assert limits(bfloat16, "dq", "bfloat16") == NARROW
    assert limits(ARITHMETICS["rounds inputs"], "dq", "float32") == NARROW
    assert limits(bfloat16, "l", "float32").rms == WIDE.rms
    assert limits(float32, "dab", "bfloat16").rms == NARROW.rms


def test_what_must_be_exact_or_is_unknown_is_left_out() -> None:
    x = normal(1, "bfloat16")  # causal
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("bfloat16"))
    spread = truth.predicted_spread("dk", "bfloat16")
    # 128 keys, of which 96 queries see the first 96.
    assert np.all(spread[:, :, 96:] == 0)
    assert np.all(spread[:, :, :96] > 0)

    got = np.array([[7.0, 3.0, np.inf]])
    found = Deviations.of(got, np.array([[5.0, 1.0, 0.0]]), np.array([[0.0, 2.0, np.inf]]))
    assert found.judged.tolist() == [[False, True, False]]
    assert found.rms == 1.0
    assert found.rows.tolist() == [1.0]


def test_bias_is_what_errors_have_in_common_with_the_truth() -> None:
    rng = np.random.default_rng(0)
    truth, noise = rng.standard_normal((2, 1000, 16))
    model = Arithmetic.of("bfloat16")

    def bias(got: np.ndarray) -> float:
        return Deviations.of(got, truth, np.full(truth.shape, 0.01)).bias(model)

    assert bias(truth + 0.01 * noise) < 4
    # beta = 0.003, whose standard deviation is 0.01 / sqrt(16000).
    assert math.isclose(bias(1.003 * truth), 0.003 / 0.01 * math.sqrt(16000), rel_tol=0.02)
    # float32 sm_scale is off by as much as that.
    assert bias(truth * (1 + 2 * model.unit)) == 0


def test_one_wrong_row_shows_in_rows() -> None:
    error = np.ones((4, 8))
    error[2] = 5
    found = Deviations.of(error, np.zeros((4, 8)), np.ones((4, 8)))

    assert found.rows.tolist() == [1, 1, 5, 1]
    assert found.rms < 3


def test_ties_are_seen() -> None:
    tied = {"repeated_rows", "integers", "constant_values", "one_hot_values", "deep_weights"}
    tied.add("peaked")  # queries are keys, the same key for several
    for family in VALUES:
        x = inputs(0, family, "bfloat16", shape=(1, 2, 24, 40, 16))
        assert is_generic(x.q, x.k, x.v, x.do) == (family not in tied), family
    assert not is_generic(np.zeros((4, 4)))


@pytest.mark.parametrize("bits", [8, 11, 16])
def test_cast_rounds_to_so_many_bits(bits: int) -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    error = np.abs(cast(values, 2.0**-bits) / values.astype(np.float64) - 1)

    assert 0.98 * 2.0**-bits < error.max() <= 2.0**-bits
    assert cast(values, 0.0) is values
