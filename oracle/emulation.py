"""Attention in float32 NumPy that rounds where a declared arithmetic rounds, and nowhere else.

One correct kernel among many, by tiles with a running maximum. Its errors are no bound on those of
another; their root mean square on the same data is what another's can be held against, in bfloat16
to a few per cent, because both cast at the same places.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from oracle.attention import row_sum, transpose, visibility
from oracle.rounding import BFLOAT16, Arithmetic, Format

F32 = np.float32


def cast(array: np.ndarray, unit: float) -> np.ndarray:
    """`array` rounded to nearest with relative errors of at most `unit`, a power of two; as it is
    for 0."""
    if not unit:
        return array
    return Format("", round(-np.log2(unit))).round(array.astype(np.float64)).astype(F32)


@dataclasses.dataclass(frozen=True)
class Emulation:
    """A call; shapes, dtypes and segment ids as for `oracle.Truth`.

    divides_first: the weights are divided by their sum before they are cast and meet v, which needs
    all keys in one tile, instead of the output at the end. Both are usual, and differ by up to a
    quarter in the errors of o: the largest weight of a row is exactly 1 only where it is not
    divided.
    """

    q: Any
    k: Any
    v: Any
    ab: Any = None
    segment_ids: Any = None
    do: Any = None
    _: dataclasses.KW_ONLY
    causal: bool = False
    sm_scale: float = 1.0
    arithmetic: Arithmetic
    divides_first: bool = False

    def forward(self) -> dict[str, np.ndarray]:
        """o, l, m and, where the arithmetic saves it, lse. A row that sees nothing has o = 0,
        l = 0, m = -inf and lse = -inf."""
        model = self.arithmetic
        m = np.full((*self.q.shape[:3], 1), -np.inf, F32)
        l, acc = np.zeros_like(m), np.zeros(self.q.shape, F32)
        v = self._operand(self.v)
        for keys in self._tiles():
            s = self._logits(keys)
            before, m = m, np.maximum(m, s.max(axis=-1, keepdims=True))
            finite = np.where(np.isneginf(m), F32(0), m)
            p, rescale = np.exp(s - finite), np.exp(before - finite)
            l = rescale * l + row_sum(cast(p, model.p_to_sum))
            if self.divides_first:
                p = p / np.where(l == 0, F32(1), l)
            acc = rescale * acc + cast(p, model.p_to_v) @ v[:, :, keys]
        if not self.divides_first:
            acc = acc / np.where(l == 0, F32(1), l)
        found = {"o": self._output(acc), "l": l[..., 0], "m": m[..., 0]}
        if model.saves_lse:
            found["lse"] = found["m"] + np.log(found["l"], where=found["l"] > 0, out=0 * found["l"])
        return found

    def backward(self, forward: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """dq, dk, dv and dab, which stays float32, from what `forward` gave."""
        model = self.arithmetic
        s = self._logits(slice(None))
        shift = forward["lse" if model.saves_lse else "m"][..., None]
        p = np.exp(s - np.where(np.isneginf(shift), F32(0), shift))
        if not model.saves_lse:
            l = forward["l"][..., None]
            p = p / np.where(l == 0, F32(1), l)
        do = np.asarray(self.do).astype(F32)
        di = row_sum(forward["o"].astype(F32) * do)
        q, k, do = self._operand(self.q), self._operand(self.k), self._operand(do)
        ds = p * (do @ transpose(self._operand(self.v)) - di) * F32(self.sm_scale)
        return {
            "dq": self._output(cast(ds, model.ds_to_k) @ k),
            "dk": self._output(transpose(cast(ds, model.ds_to_q)) @ q),
            "dv": self._output(transpose(cast(p, model.p_to_do)) @ do),
            "dab": ds,
        }

    def _tiles(self) -> list[slice]:
        keys = self.k.shape[2]
        width = keys if self.divides_first else -(-keys // self.arithmetic.kv_tiles)
        return [slice(start, start + width) for start in range(0, keys, width)]

    def _logits(self, keys: slice) -> np.ndarray:
        s = self._operand(self.q) @ transpose(self._operand(self.k)[:, :, keys])
        ab = None
        if self.ab is not None:
            ab = np.asarray(self.ab).astype(F32)
            s = s + ab[..., keys]
        lengths = (self.q.shape[2], self.k.shape[2])
        visible = visibility(lengths, ab, self.segment_ids, self.causal)[..., keys]
        return np.where(visible, s * F32(self.sm_scale), F32(-np.inf))

    def _operand(self, array: Any) -> np.ndarray:
        """An operand of a matrix product, as the product reads it."""
        array = np.asarray(array).astype(F32)
        if self.arithmetic.rounds_inputs:
            array = cast(array, BFLOAT16.unit_roundoff)
        return cast(array, self.arithmetic.operand)

    def _output(self, array: np.ndarray) -> np.ndarray:
        return cast(array, self.arithmetic.output)
