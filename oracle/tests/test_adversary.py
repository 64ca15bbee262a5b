"""The bounds against the worst roundings: every one chosen to push one element as far as it goes.

A tiled kernel is run in float64 with each rounding written out as a factor 1 + u t, t in [-1, 1],
one t for each operation and element. The derivative of an output element by all t at once says
which sign of each rounding moves it most. u is that of float32, where bounds are first order, or as
large as 2**-9, where weights change by factors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracle import Arithmetic, Truth
from oracle.rounding import BFLOAT16, SMALLEST_NORMAL
from oracle.tests.emulation import visible_keys
from oracle.tests.families import VALUES, Inputs, inputs

SHAPE = (1, 1, 4, 8, 4)
FORWARD = ("o", "l", "m", "lse")
GRADIENTS = ("dq", "dk", "dv", "dab")
# What is compiled runs for milliseconds: optimising it, or fusing its thousands of operations,
# costs seconds and saves nothing.
QUICK_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_disable_hlo_passes": "fusion",
}
CASTS = ("p_to_v", "p_to_do", "p_to_sum", "ds_to_q", "ds_to_k")


class Roundings:
    """Applies one array of t to each operation; without any, records the shapes it would need.

    units: the sizes of all roundings by the names of `Arithmetic`; 0 for what is exact.
    """

    def __init__(self, units: dict, choices: list | None = None) -> None:
        self.units = units
        self.shapes: list[tuple[int, ...]] = []
        self.choices: Iterator | None = None if choices is None else iter(choices)

    def choice(self, shape: tuple[int, ...]):
        self.shapes.append(shape)
        return jnp.zeros(shape) if self.choices is None else next(self.choices)

    def __call__(self, value, unit: str = "unit"):
        return value * (1 + self.units[unit] * self.choice(value.shape))

    def output(self, value):
        """The cast of o, if it is one: at most half a unit in the last place."""
        magnitude = jnp.abs(jax.lax.stop_gradient(value))
        _, exponent = jnp.frexp(jnp.maximum(magnitude, SMALLEST_NORMAL))
        half_ulp = jnp.exp2(exponent - BFLOAT16.significand - 1.0)
        return value + jnp.sign(self.units["output"]) * half_ulp * self.choice(value.shape)

    def total(self, terms):
        """Sum over the last axis, one rounded addition after the other.

        A term carries the factors of all additions from its own on.
        """
        if terms.shape[-1] == 1:
            return terms[..., 0]
        additions = self(jnp.ones((*terms.shape[:-1], terms.shape[-1] - 1)))
        passed = jnp.cumprod(additions[..., ::-1], axis=-1)[..., ::-1]
        return terms[..., 0] * passed[..., 0] + (terms[..., 1:] * passed).sum(-1)

    def dot(self, left, right):
        """left @ right: products, and their sum."""
        terms = left[..., :, None, :] * jnp.swapaxes(right, -1, -2)[..., None, :, :]
        return self.total(self(terms, "product"))


def kernel(
    rnd: Roundings, x: Inputs, visible: np.ndarray, *, tile: int, end_to_end: bool, saves_lse: bool
) -> dict:
    """All outputs of a kernel that renormalises in every tile.

    Unless `end_to_end`, no derivative passes from the forward to the backward pass.
    """
    everything = slice(None)

    def exp(argument):
        return rnd(jnp.exp(rnd(rnd(rnd(argument)))), "exp")

    def logits(keys: slice):
        s = rnd.dot(x.q, jnp.swapaxes(x.k[:, :, keys], -1, -2))
        s = rnd(s + x.ab[..., keys])
        return rnd(s * rnd(rnd(jnp.full(s.shape, x.sm_scale))))

    def weights(s, peak, keys: slice):
        seen = visible[..., keys]
        return jnp.where(seen, exp(jnp.where(seen, s - peak, 0)), 0)

    total = acc = jnp.zeros((*x.q.shape[:3], 1))
    peak = jnp.full(total.shape, -1e5)  # below every logit of these tests
    for start in range(0, x.k.shape[2], tile):
        keys = slice(start, start + tile)
        s = logits(keys)
        masked = jnp.where(visible[..., keys], s, -jnp.inf)
        higher = jnp.maximum(peak, masked.max(-1, keepdims=True))
        p = weights(s, higher, keys)
        before = rnd(exp(peak - higher) * total)
        total = rnd(before + rnd.total(rnd(p, "p_to_sum"))[..., None])
        inverse = rnd(1 / total)
        acc = rnd(acc * rnd(before * inverse))
        acc = rnd(acc + rnd(rnd.dot(rnd(p, "p_to_v"), x.v[:, :, keys]) * inverse))
        peak = higher
    lse = rnd(peak + rnd(jnp.log(total)))
    out = {"o": acc, "l": total[..., 0], "m": peak[..., 0], "lse": lse[..., 0]}
    out["l at true m"] = total[..., 0] * jnp.exp(peak - jax.lax.stop_gradient(peak))[..., 0]
    saved = (rnd.output(acc), total, peak, lse)
    o, total, peak, lse = saved if end_to_end else jax.lax.stop_gradient(saved)
    out["saved o"] = o

    s = logits(everything)
    if saves_lse:
        p = weights(s, lse, everything)
    else:
        p = rnd(weights(s, peak, everything) * rnd(1 / total))
    di = rnd.total(rnd(o * x.do))[..., None]
    dp = rnd.dot(x.do, jnp.swapaxes(x.v, -1, -2))
    ds = rnd(rnd(p * rnd(dp - di)) * rnd(jnp.full(p.shape, x.sm_scale)))
    out["dab"] = ds
    out["dv"] = rnd.dot(jnp.swapaxes(rnd(p, "p_to_do"), -1, -2), x.do)
    out["dk"] = rnd.dot(jnp.swapaxes(rnd(ds, "ds_to_q"), -1, -2), x.q)
    out["dq"] = rnd.dot(rnd(ds, "ds_to_k"), x.k)
    return out


class Attack:
    """Runs the kernel under chosen roundings; compiled once, for all values, dtypes and units."""

    def __init__(self, *, tile: int, end_to_end: bool, saves_lse: bool) -> None:
        self.tile, self.end_to_end, self.saves_lse = tile, end_to_end, saves_lse
        way: dict[str, Any] = {"tile": tile, "end_to_end": end_to_end, "saves_lse": saves_lse}
        visible = visible_keys(self.inputs("normal", "float32"))

        def run(choices: list | None, units: dict, x: dict) -> dict:
            rnd = Roundings(units, choices)
            return kernel(rnd, Inputs(**x), visible, **way)

        def steepest(choices: list, units: dict, x: dict, direction: dict) -> list:
            _, pull = jax.vjp(lambda t: run(t, units, x), choices)
            return [jnp.sign(slope) for slope in pull(direction)[0]]

        units = self.units(self.model("float32", 2.0**-24))
        recorder = Roundings(units)
        jax.eval_shape(
            lambda x: kernel(recorder, Inputs(**x), visible, **way),
            self.arrays("normal", "float32"),
        )
        self.exact = [np.zeros(shape) for shape in recorder.shapes]
        self.run = jax.jit(run, compiler_options=QUICK_COMPILE)
        self.steepest = jax.jit(steepest, compiler_options=QUICK_COMPILE)

    def model(self, dtype: str, unit: float) -> Arithmetic:
        model = Arithmetic.of(dtype, kv_tiles=-(-SHAPE[3] // self.tile), saves_lse=self.saves_lse)
        return dataclasses.replace(model, unit=unit, exp=4 * unit)

    def units(self, model: Arithmetic) -> dict[str, float]:
        sizes = {name: getattr(model, name) for name in ("unit", "exp", "output", *CASTS)}
        return sizes | {"product": model.product * model.unit}

    def inputs(self, values: str, dtype: str) -> Inputs:
        x = inputs(0, values, dtype, shape=SHAPE, bias_kind="normal")
        return dataclasses.replace(x, causal=not self.end_to_end)

    def arrays(self, values: str, dtype: str) -> dict:
        x = self.inputs(values, dtype).call()
        return {
            name: None if value is None else np.asarray(value, np.float64)
            for name, value in x.items()
        }

    def worst_ratios(
        self, values: str, dtype: str, unit: float, rng: np.random.Generator
    ) -> dict[str, float]:
        """Largest ratio of each output, of which one element is pushed up, then down."""
        model = self.model(dtype, unit)
        truth = Truth(**self.inputs(values, dtype).call(), arithmetic=model)
        given = self.units(model), self.arrays(values, dtype)
        unrounded = self.run(self.exact, *given)
        worst: dict[str, float] = {}
        for name in FORWARD + GRADIENTS if self.end_to_end else GRADIENTS:
            pushed = "l at true m" if name == "l" else name
            index = rng.integers(unrounded[name].size)
            for sign in (1.0, -1.0):
                direction = {key: np.zeros_like(value) for key, value in unrounded.items()}
                direction[pushed].flat[index] = sign
                choices = self.exact
                for _ in range(2):  # once more from there: weights change by factors
                    choices = self.steepest(choices, *given, direction)
                    got = {key: np.asarray(g) for key, g in self.run(choices, *given).items()}
                    judge = truth if self.end_to_end else truth.given(self.residuals(got))
                    ratio = float(judge.ratio(name, got[name], m=got["m"]).max())
                    worst[name] = max(worst.get(name, 0.0), ratio)
        return worst

    def residuals(self, got: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        if self.saves_lse:
            return got["saved o"], got["lse"]
        return got["saved o"], got["l"], got["m"]


@pytest.mark.parametrize(
    ("tile", "end_to_end", "saves_lse"),
    # With a tile for each key, rescaling weighs as much as it ever can.
    [(4, True, False), (4, False, False), (1, True, True)],
)
def test_no_choice_of_roundings_exceeds_the_bound(
    tile: int, end_to_end: bool, saves_lse: bool
) -> None:
    rng = np.random.default_rng(0)
    sharpest: dict[str, float] = {}
    with jax.enable_x64(True):
        attack = Attack(tile=tile, end_to_end=end_to_end, saves_lse=saves_lse)
        for dtype in ("float32", "bfloat16"):
            for unit in (2.0**-24, 2.0**-9):
                for values in VALUES:
                    if values in ("near_underflow", "subnormal_values"):
                        continue  # flushing is no relative error, and no part of this attack
                    worst = attack.worst_ratios(values, dtype, unit, rng)
                    assert max(worst.values()) < 1, (dtype, unit, values, worst)
                    if (dtype, unit) == ("bfloat16", 2.0**-24):
                        sharpest = {
                            name: max(sharpest.get(name, 0.0), ratio)
                            for name, ratio in worst.items()
                        }
    # Where the casts to bfloat16 decide, the bound is nearly attained: no bound that is materially
    # smaller is free of false alarms.
    decided_by_casts = ("o", "dq", "dk", "dv") if end_to_end else ("dq", "dk", "dv")
    assert min(sharpest[name] for name in decided_by_casts) > 0.8, sharpest
