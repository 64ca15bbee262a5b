"""Correct attention, written in the ways that kernels differ in: what must never be reported.

Each variant is a target of its own, `properties.tests.variants:NAME`, that claims what it does. All
are one loop over tiles of keys in plain jnp, with a backward from what the forward saves; shares no
code with `kernel`.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from properties.judging.targets import FEATURES

_TILE = 128  # the narrowest tile that the arithmetic of a target without explicit blocks allows
_LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of computing attention, and an adapter that claims it.

    normalises: when acc is divided by the sum of weights. "last": at the end; "each_tile": acc is
    an average after each tile; "weights": all keys are one tile, and the weights are divided before
    they are cast.
    """

    normalises: Literal["last", "each_tile", "weights"] = "last"
    exp2: bool = False
    """Weights are exp2 of an argument times log2(e), instead of exp."""
    base_two: bool = False
    """Logits carry sm_scale log2(e) in one constant, and weights are exp2 of them. The lowest
    finite bias then overflows, and hides keys that it must not: no bias is claimed."""
    reversed_keys: bool = False
    """Tiles of keys are visited from the last to the first."""
    saves_lse: bool = False
    """One log-sum-exp is saved instead of l and m."""
    sums_rounded_p: bool = False
    """Weights are cast to v's dtype before they are summed, too."""
    rounds_operands: bool = False
    """Operands of matrix products are rounded to bfloat16: float32 on a TPU, unless asked."""
    claims_rounding: bool = True

    masked_rows = "zero"

    @property
    def features(self) -> frozenset[str]:
        unclaimed = {"block_sizes"} | ({"bias", "bias_gradient"} if self.base_two else set())
        return FEATURES - unclaimed

    @property
    def arithmetic(self) -> dict[str, Any]:
        """What differs from the usual, in the words of `oracle.Arithmetic.of`."""
        claims: dict[str, Any] = {"saves_lse": self.saves_lse}
        if self.base_two:
            claims["scaled"] = True  # by log2(e), where not by sm_scale
        if self.sums_rounded_p:
            claims["sums_rounded_p"] = True
        if self.rounds_operands and self.claims_rounding:
            claims["operands"] = "bfloat16"
        return claims

    def call(
        self,
        *inputs: Any,
        segment_ids: Any,
        causal: bool,
        sm_scale: float,
        block_sizes: None,
        debug: bool,
    ) -> jax.Array:
        tiles = _Tiles(self, segment_ids, causal, sm_scale)

        @jax.custom_vjp
        def attend(*inputs):
            return tiles.forward(*inputs)[0]

        def forward(*inputs):
            saved = tiles.forward(*inputs)
            return saved[0], (inputs, saved)

        def backward(saved, do):
            inputs, of_forward = saved
            return tiles.backward(inputs, of_forward, do)

        attend.defvjp(forward, backward)
        return attend(*inputs)

    def residuals(
        self,
        *inputs: Any,
        segment_ids: Any,
        causal: bool,
        sm_scale: float,
        block_sizes: None,
    ) -> tuple[jax.Array, ...]:
        o, *statistics = _Tiles(self, segment_ids, causal, sm_scale).forward(*inputs)
        return o, *(each[..., 0] for each in statistics)


@dataclasses.dataclass(frozen=True)
class _Tiles:
    """Forward and backward of one call: q, k, v [batch, heads, length, head_dim] and ab or None."""

    way: Variant
    segment_ids: Any
    causal: bool
    sm_scale: float

    def forward(self, q, k, v, ab):
        """(o, l, m) or (o, lse), row statistics [batch, heads, q_len, 1] float32."""
        way = self.way
        column = (*q.shape[:3], 1)
        m, l = jnp.full(column, -jnp.inf), jnp.zeros(column)
        acc = jnp.zeros(q.shape)
        for keys in self.tiles(k.shape[2]):
            s = self.logits(q, k, ab, keys)
            m_before, l_before = m, l
            m = jnp.maximum(m, s.max(-1, keepdims=True))
            finite = jnp.where(m == -jnp.inf, 0.0, m)
            p, rescale = self.exp(s - finite), self.exp(m_before - finite)
            summed = p.astype(v.dtype).astype(jnp.float32) if way.sums_rounded_p else p
            l = rescale * l + summed.sum(-1, keepdims=True)
            some = jnp.where(l == 0, 1.0, l)
            if way.normalises == "weights":
                acc = self.product("bhij,bhjd->bhid", (p / some).astype(v.dtype), v[:, :, keys])
                continue
            part = self.product("bhij,bhjd->bhid", p.astype(v.dtype), v[:, :, keys])
            if way.normalises == "each_tile":
                acc = acc * (rescale * l_before / some) + part * (1.0 / some)
            else:
                acc = acc * rescale + part
        if way.normalises == "last":
            acc = acc / jnp.where(l == 0, 1.0, l)
        o = acc.astype(q.dtype)
        if way.base_two:
            m = m * np.float32(1 / _LOG2_E)
        if way.saves_lse:
            return o, m + jnp.log(jnp.where(l == 0, 1.0, l))
        return o, l, m

    def backward(self, inputs, saved, do):
        """The cotangents of q, k, v and ab."""
        q, k, v, ab = inputs
        o, *statistics = saved
        shift = statistics[-1]
        if self.way.base_two:
            shift = shift * np.float32(_LOG2_E)
        di = (o.astype(jnp.float32) * do.astype(jnp.float32)).sum(-1, keepdims=True)
        dq = jnp.zeros(q.shape)
        by_tile = []
        for keys in self.tiles(k.shape[2]):
            s = self.logits(q, k, ab, keys)
            p = jnp.where(s == -jnp.inf, 0.0, self.exp(s - shift))
            if not self.way.saves_lse:
                p = p / jnp.where(statistics[0] == 0, 1.0, statistics[0])
            dp = self.product("bhid,bhjd->bhij", do, v[:, :, keys])
            ds = jnp.where(s == -jnp.inf, 0.0, p * (dp - di) * np.float32(self.sm_scale))
            dq += self.product("bhij,bhjd->bhid", ds.astype(k.dtype), k[:, :, keys])
            dk_tile = self.product("bhij,bhid->bhjd", ds.astype(q.dtype), q)
            dv_tile = self.product("bhij,bhid->bhjd", p.astype(do.dtype), do)
            by_tile.append((dk_tile, dv_tile, ds))
        if self.way.reversed_keys:
            by_tile.reverse()
        dk, dv, dab = zip(*by_tile, strict=True)
        return (
            dq.astype(q.dtype),
            jnp.concatenate(dk, axis=2).astype(k.dtype),
            jnp.concatenate(dv, axis=2).astype(v.dtype),
            None if ab is None else jnp.concatenate(dab, axis=3).astype(ab.dtype),
        )

    def tiles(self, kv_len: int) -> list[slice]:
        """The keys of each tile, in the order of visiting."""
        width = kv_len if self.way.normalises == "weights" else _TILE
        tiles = [slice(start, min(start + width, kv_len)) for start in range(0, kv_len, width)]
        return tiles[::-1] if self.way.reversed_keys else tiles

    def logits(self, q, k, ab, keys: slice):
        """float32, -inf where a key is hidden; in units of log 2 in base two."""
        s = self.product("bhid,bhjd->bhij", q, k[:, :, keys])
        visible = jnp.ones(s.shape[2:], bool)
        if ab is not None:
            bias = ab[..., keys].astype(jnp.float32)
            visible = visible & (bias != -jnp.inf)
            s = s + bias
        s = s * np.float32(float(self.sm_scale) * (_LOG2_E if self.way.base_two else 1.0))
        if self.segment_ids is not None:
            of_query, of_key = self.segment_ids.q, self.segment_ids.kv
            visible = visible & (of_query[:, None, :, None] == of_key[:, None, None, keys])
        if self.causal:
            queries, seen = np.arange(s.shape[2]), np.arange(keys.start, keys.stop)
            visible = visible & (seen <= queries[:, None])
        return jnp.where(visible, s, -jnp.inf)

    def exp(self, argument):
        if self.way.exp2:
            return jnp.exp2(argument * np.float32(_LOG2_E))
        return jnp.exp2(argument) if self.way.base_two else jnp.exp(argument)

    def product(self, axes: str, left, right):
        """A matrix product, accumulated in float32."""
        if self.way.rounds_operands:
            left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
        return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)


divides_last = Variant()
divides_each_tile = Variant(normalises="each_tile")
divides_weights = Variant(normalises="weights")
exp2 = Variant(exp2=True)
base_two = Variant(base_two=True)
base_two_lse = Variant(base_two=True, saves_lse=True, reversed_keys=True)
reversed_keys = Variant(reversed_keys=True, normalises="each_tile")
saves_lse = Variant(saves_lse=True)
sums_rounded_p = Variant(sums_rounded_p=True)
rounds_operands = Variant(rounds_operands=True)
rounds_operands_unsaid = Variant(rounds_operands=True, claims_rounding=False)

CORRECT = (
    *("divides_last", "divides_each_tile", "divides_weights", "exp2", "base_two"),
    *("base_two_lse", "reversed_keys", "saves_lse", "sums_rounded_p", "rounds_operands"),
)
"""The variants that must pass everything."""
