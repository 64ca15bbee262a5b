"""The true values: against 50-digit arithmetic, autodiff of the definition, finite differences."""

from __future__ import annotations

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from oracle import Arithmetic, Truth
from oracle.tests.emulation import visible_keys
from oracle.tests.families import BIASES, SCALES, VALUES, Inputs, inputs

SMALL = (1, 1, 5, 6, 3)
GRADIENTS = ("dq", "dk", "dv", "dab")


def high_precision(x: Inputs, saved: tuple[np.ndarray, ...] | None = None) -> dict[str, np.ndarray]:
    """The definition in 50 digits, entry by entry; gradients given the residuals in `saved`.

    Arrays of mpmath numbers, without the axes of batch and head, which are 1.
    """
    mp = mpmath.mp
    seen = visible_keys(x)[0, 0]
    q, k, v, do = (
        [[mp.mpf(float(entry)) for entry in row] for row in array[0, 0]]
        for array in (x.q, x.k, x.v, x.do)
    )
    c = mp.mpf(x.sm_scale)
    dims = range(len(q[0]))
    shape = x.q.shape[2:]
    out = {
        "o": np.full(shape, mp.mpf(0)),
        "l": np.full(shape[0], mp.mpf(0)),
        "m": np.full(shape[0], mp.mpf("-inf")),
        "lse": np.full(shape[0], mp.mpf("-inf")),
        "dq": np.full(shape, mp.mpf(0)),
        "dk": np.full(x.k.shape[2:], mp.mpf(0)),
        "dv": np.full(x.k.shape[2:], mp.mpf(0)),
        "dab": np.full(seen.shape, mp.mpf(0)),
    }
    for i in range(shape[0]):
        keys = [j for j in range(len(k)) if seen[i, j]]
        if not keys:
            continue
        added = {j: mp.mpf(0) if x.ab is None else mp.mpf(float(x.ab[0, 0, i, j])) for j in keys}
        s = {j: c * (mpmath.fdot(q[i], k[j]) + added[j]) for j in keys}
        m = max(s.values())
        total = mpmath.fsum(mp.exp(s[j] - m) for j in keys)
        p = {j: mp.exp(s[j] - m) / total for j in keys}
        o = [mpmath.fsum(p[j] * v[j][d] for j in keys) for d in dims]
        out["o"][i], out["l"][i], out["m"][i], out["lse"][i] = o, total, m, m + mp.log(total)
        if saved is not None:
            o = [mp.mpf(float(entry)) for entry in saved[0][0, 0, i]]
            l_saved, m_saved = (mp.mpf(float(array[0, 0, i])) for array in saved[1:])
            p = {j: mp.exp(s[j] - m_saved) / l_saved for j in keys}
        di = mpmath.fdot(o, do[i])
        for j in keys:
            ds = c * p[j] * (mpmath.fdot(do[i], v[j]) - di)
            out["dab"][i, j] = ds
            for d in dims:
                out["dq"][i, d] += ds * k[j][d]
                out["dk"][j, d] += ds * q[i][d]
                out["dv"][j, d] += p[j] * do[i][d]
    return out


def share_of_bound(truth: Truth, exact: dict[str, np.ndarray], names: tuple[str, ...]) -> float:
    """Largest error of the oracle over the bound it reports, where there is a bound."""
    worst = 0.0
    for name in names:
        value, bound = truth.values[name][0, 0], truth.bounds[name][0, 0]
        for index in np.ndindex(value.shape):
            if not np.isfinite(bound[index]):
                continue
            error = abs(exact[name][index] - mpmath.mpf(float(value[index])))
            worst = max(worst, 0.0 if error == 0 else float(error) / max(bound[index], 1e-300))
    return worst


@cache
def worst_share(values: str, dtype: str) -> float:
    """Over all biases, with causal order and without; end to end and conditional."""
    model = Arithmetic.of(dtype)
    worst = 0.0
    with mpmath.workdps(50):
        for seed, bias_kind in enumerate(BIASES):
            x = inputs(seed, values, dtype, shape=SMALL, bias_kind=bias_kind, segments=seed == 1)
            truth = Truth(**x.call(), arithmetic=model)
            worst = max(worst, share_of_bound(truth, high_precision(x), tuple(truth.values)))
            saved = tuple(truth.values[name].astype(np.float32) for name in ("o", "l", "m"))
            given = truth.given(saved)
            worst = max(worst, share_of_bound(given, high_precision(x, saved), GRADIENTS))
    return worst


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("values", VALUES)
def test_error_is_a_thousandth_of_the_bound(values: str, dtype: str) -> None:
    assert worst_share(values, dtype) <= 1e-3


@pytest.mark.parametrize("sm_scale", SCALES)
def test_error_is_a_thousandth_of_the_bound_at_any_scale(sm_scale: float) -> None:
    x = inputs(1, "normal", "float32", shape=SMALL, bias_kind="normal", sm_scale=sm_scale)
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    with mpmath.workdps(50):
        assert share_of_bound(truth, high_precision(x), tuple(truth.values)) <= 1e-3


def definition(q, k, v, ab, visible, sm_scale: float):
    """Attention in jax.numpy for autodiff; a row that sees nothing gives 0."""
    s = jnp.where(visible, (q @ jnp.swapaxes(k, -1, -2) + ab) * sm_scale, -jnp.inf)
    m = jnp.where(visible.any(-1, keepdims=True), s.max(-1, keepdims=True), 0)
    e = jnp.where(visible, jnp.exp(jnp.where(visible, s - m, 0)), 0)
    return e @ v / jnp.maximum(e.sum(-1, keepdims=True), 1e-300)


@pytest.mark.parametrize("values", ["normal", "peaked", "integers", "one_huge_key"])
@pytest.mark.parametrize("bias_kind", ["none", "normal", "infinite_columns", "infinite_rows"])
def test_gradients_are_those_of_autodiff(values: str, bias_kind: str) -> None:
    x = inputs(5, values, "float32", bias_kind=bias_kind, sm_scale=-0.5, segments=True)
    visible = visible_keys(x)
    ab = np.zeros(visible.shape) if x.ab is None else np.where(visible, x.ab, 0)
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    with jax.enable_x64(True):
        arrays = [jnp.asarray(array, jnp.float64) for array in (x.q, x.k, x.v, ab)]
        o, pull = jax.vjp(partial(definition, visible=visible, sm_scale=x.sm_scale), *arrays)
        grads = pull(jnp.asarray(x.do, jnp.float64))
        expected = {name: np.asarray(g) for name, g in zip(GRADIENTS, grads, strict=True)}
        expected["o"] = np.asarray(o)
    assert jnp.zeros(1).dtype == jnp.float32  # x64 mode has not leaked
    for name, value in expected.items():
        assert value.dtype == np.float64
        assert truth.ratio(name, value).max() < 1e-3, name


def test_gradients_are_those_of_finite_differences() -> None:
    x = inputs(3, "normal", "float32", shape=(1, 2, 4, 5, 3), bias_kind="infinite_columns")
    model = Arithmetic.of("float32")
    truth = Truth(**x.call(), arithmetic=model)
    step = 2.0**-14

    def weighted_output(name: str, index: tuple[int, ...], delta: float) -> float:
        moved = np.array(getattr(x, name), np.float64)
        moved[index] += delta
        call = {**x.call(), name: moved}
        return float(np.sum(Truth(**call, arithmetic=model).values["o"] * x.do))

    for name in ("q", "k", "v", "ab"):
        gradient = truth.values["d" + name]
        for index in np.ndindex(gradient.shape):
            rise = weighted_output(name, index, step) - weighted_output(name, index, -step)
            # The central difference errs by step**2 times a third derivative of order 1, and by
            # float64 roundoff over the step.
            assert abs(rise / (2 * step) - gradient[index]) < 10 * step**2, (name, index)


def test_conditional_gradients_follow_the_residuals() -> None:
    x = inputs(2, "normal", "float32")
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    o, total, m, lse = (truth.values[name] for name in ("o", "l", "m", "lse"))
    for saved in ((o, total, m), (o, lse), (o, total * np.e, m - 1)):
        given = truth.given(saved)
        for name in GRADIENTS:
            assert given.ratio(name, truth.values[name]).max() < 1e-3
    doubled = truth.given((o, 2 * total, m)).values
    assert np.allclose(doubled["dv"], truth.values["dv"] / 2)
    direct = Truth(**x.call(), arithmetic=truth.arithmetic, residuals=(o, 2 * total, m))
    assert np.array_equal(direct.values["dq"], doubled["dq"])
    assert np.array_equal(direct.bounds["dq"], truth.given((o, 2 * total, m)).bounds["dq"])


def test_overflowing_logits_hide_as_an_infinite_bias_does() -> None:
    x = inputs(0, "normal", "float32", bias_kind="lowest_columns", sm_scale=2.0)
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    assert not truth.visible[..., ::3].any()
    assert np.all(truth.bounds["dab"][..., ::3] == 0)
    kept = dataclasses.replace(x, sm_scale=1.0)
    assert Truth(**kept.call(), arithmetic=Arithmetic.of("float32")).visible.all()


def test_causal_order_is_aligned_at_the_top_left() -> None:
    for q_len, kv_len in ((3, 5), (5, 3)):
        x = inputs(1, "normal", "float32", shape=(1, 1, q_len, kv_len, 2))
        seen = Truth(**x.call(), arithmetic=Arithmetic.of("float32")).visible[0, 0]
        assert np.array_equal(seen, np.tril(np.ones((q_len, kv_len), bool)))


def test_residuals_need_a_cotangent() -> None:
    x = dataclasses.replace(inputs(0, "normal", "float32"), do=None)
    truth = Truth(**x.call(), arithmetic=Arithmetic.of("float32"))
    assert set(truth.values) == {"o", "l", "m", "lse"} == set(truth.bounds)
    saved = tuple(truth.values[name] for name in ("o", "l", "m"))
    with pytest.raises(ValueError, match="pass the cotangent"):
        truth.given(saved)
    with pytest.raises(ValueError, match="pass the cotangent"):
        Truth(**x.call(), arithmetic=Arithmetic.of("float32"), residuals=saved)


def test_ratio_refuses_what_it_cannot_judge() -> None:
    x = inputs(0, "normal", "float32")
    truth = Truth(**dataclasses.replace(x, do=None).call(), arithmetic=Arithmetic.of("float32"))
    with pytest.raises(ValueError, match="own m"):
        truth.ratio("l", truth.values["l"])
    with pytest.raises(ValueError, match="'dq' is unknown"):
        truth.ratio("dq", x.q)
    with pytest.raises(ValueError, match="has shape"):
        truth.ratio("o", x.q[:, :1])
