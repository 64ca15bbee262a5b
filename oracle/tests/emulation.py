"""Flash attention by tiles in NumPy, rounding where a kernel rounds: what must pass, and faults.

float32 throughout; with bfloat16 inputs, p and ds are cast before their products and o, dq, dk, dv
at the end. Shares nothing with the oracle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

from oracle.tests.families import Inputs

Dot = Callable[[np.ndarray, np.ndarray], np.ndarray]
F32 = np.float32


def transpose(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)


def blas_dot(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.astype(F32) @ right.astype(F32)


def sequential_dot(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Each product and each partial sum rounded, last term first."""
    terms = left.astype(F32)[..., ::-1, None] * right.astype(F32)[..., None, ::-1, :]
    return np.cumsum(terms, axis=-2, dtype=F32)[..., -1, :]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One way of implementing attention; every instance is correct."""

    block_k: int = 16
    block_q: int = 16
    dot: Dot = blas_dot
    normalises_each_tile: bool = False
    exp2: bool = False
    saves_lse: bool = False
    flushes: bool = False
    rounds_inputs: bool = False

    def operand(self, array: np.ndarray) -> np.ndarray:
        return array.astype(ml_dtypes.bfloat16) if self.rounds_inputs else array

    def exp(self, argument: np.ndarray) -> np.ndarray:
        argument = argument.astype(F32)
        result = np.exp2(argument * F32(np.log2(np.e))) if self.exp2 else np.exp(argument)
        return np.where(result < F32(2.0**-126), F32(0), result) if self.flushes else result

    def logits(self, x: Inputs, visible: np.ndarray, keys: slice) -> np.ndarray:
        scores = self.dot(self.operand(x.q), transpose(self.operand(x.k[:, :, keys])))
        if x.ab is not None:
            scores = scores + x.ab[..., keys].astype(F32)
        return np.where(visible[..., keys], scores * F32(x.sm_scale), F32(-np.inf))

    def forward(self, x: Inputs, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(o in the inputs' dtype, l, m)."""
        total = np.zeros((*x.q.shape[:3], 1), F32)
        peak = np.full_like(total, -np.inf)
        acc = np.zeros(x.q.shape, F32)
        for start in range(0, x.k.shape[2], self.block_k):
            keys = slice(start, start + self.block_k)
            scores = self.logits(x, visible, keys)
            higher = np.maximum(peak, scores.max(-1, keepdims=True))
            finite = np.where(np.isfinite(higher), higher, F32(0))
            p = self.exp(scores - finite)
            decay = np.where(np.isfinite(peak), self.exp(peak - finite), F32(0))
            before, total = total, decay * total + p.sum(-1, keepdims=True, dtype=F32)
            v = self.operand(x.v[:, :, keys])
            if self.normalises_each_tile:
                inverse = np.where(total == 0, F32(1), F32(1) / np.where(total == 0, 1, total))
                acc = acc * (decay * before * inverse)
                acc = acc + self.dot(p.astype(v.dtype), v) * inverse
            else:
                acc = acc * decay + self.dot(p.astype(v.dtype), v)
            peak = higher
        if not self.normalises_each_tile:
            acc = acc / np.where(total == 0, F32(1), total)
        return acc.astype(x.q.dtype), total[..., 0], peak[..., 0]

    def backward(
        self, x: Inputs, visible: np.ndarray, o: np.ndarray, total: np.ndarray, peak: np.ndarray
    ) -> dict[str, np.ndarray]:
        di = (o.astype(F32) * x.do.astype(F32)).sum(-1, keepdims=True, dtype=F32)
        rows = total[..., None] > 0
        if self.saves_lse:
            lse = np.where(rows, peak[..., None] + np.log(np.where(rows, total[..., None], 1)), 0)
        scores = self.logits(x, visible, slice(None))
        if self.saves_lse:
            p = self.exp(scores - lse)
        else:
            p = self.exp(scores - np.where(rows, peak[..., None], 0))
            p = p * (F32(1) / np.where(rows, total[..., None], F32(1)))
        do, k, q = self.operand(x.do), self.operand(x.k), self.operand(x.q)
        dp = self.dot(do, transpose(self.operand(x.v)))
        ds = np.where(visible, p * (dp - di), F32(0)) * F32(x.sm_scale)
        dk, dv = np.zeros(x.k.shape, F32), np.zeros(x.v.shape, F32)
        for start in range(0, x.q.shape[2], self.block_q):
            rows_of = slice(start, start + self.block_q)
            p_cast, ds_cast = p[:, :, rows_of].astype(do.dtype), ds[:, :, rows_of].astype(q.dtype)
            dv = dv + self.dot(transpose(p_cast), do[:, :, rows_of])
            dk = dk + self.dot(transpose(ds_cast), q[:, :, rows_of])
        dq = np.zeros(x.q.shape, F32)
        for start in range(0, x.k.shape[2], self.block_k):
            keys = slice(start, start + self.block_k)
            dq = dq + self.dot(ds[..., keys].astype(k.dtype), k[:, :, keys])
        dtype = x.q.dtype
        return {"dq": dq.astype(dtype), "dk": dk.astype(dtype), "dv": dv.astype(dtype), "dab": ds}


def visible_keys(x: Inputs) -> np.ndarray:
    """bool [B, H, Sq, Skv], position by position from the definition."""
    seen = np.ones((*x.q.shape[:3], x.k.shape[2]), bool)
    for b, h, i, j in np.ndindex(seen.shape):
        seen[b, h, i, j] = (
            (not x.causal or j <= i)
            and (x.segment_ids is None or x.segment_ids[0][b, i] == x.segment_ids[1][b, j])
            and (x.ab is None or x.ab[b, h, i, j] != -np.inf)
        )
    return seen
