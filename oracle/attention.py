"""Attention and its gradients in float64, straight from the definition.

    s = (q k^T + ab) sm_scale            the bias is added before the scale
    visible(i, j) = segment_q[i] == segment_kv[j] and (not causal or j <= i) and ab[i, j] != -inf
    o = softmax(s over the visible keys) v

A row that sees no key gives o = 0 and takes no part in any gradient. What stands at a hidden
position, NaN and infinity in the bias included, enters no sum.

Shapes: q, o, do [B, H, Sq, D]; k, v [B, H, Skv, D]; bias and logits [B, H, Sq, Skv]; row statistics
keep their last axis, [B, H, Sq, 1], so that they broadcast against both.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from oracle.rounding import BFLOAT16, FLOAT32


def transpose(matrices: np.ndarray) -> np.ndarray:
    """The last two axes exchanged."""
    return np.swapaxes(matrices, -1, -2)


def row_sum(values: np.ndarray) -> np.ndarray:
    """Sum over the last axis, which stays with length 1."""
    return np.sum(values, axis=-1, keepdims=True)


def float64(array: Any) -> np.ndarray:
    """Any floating-point array, bfloat16 included, as float64; exact."""
    with np.errstate(invalid="ignore"):  # some NaNs of bfloat16 warn when they are cast
        return np.asarray(array).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Forward:
    """The forward pass, with what its error bounds need. All float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    biased: bool
    visible: np.ndarray
    """bool, broadcasts to [B, H, Sq, Skv]."""
    rows: np.ndarray
    """bool [B, H, Sq, 1]: rows that see a key."""
    products: np.ndarray
    """q k^T."""
    unscaled: np.ndarray
    """q k^T + ab, finite at hidden positions too: the bias counts as 0 there."""
    depth: np.ndarray
    """m - s >= 0, infinite at hidden positions."""
    m: np.ndarray
    """Largest visible logit of the row; 0 in a row that sees nothing."""
    total: np.ndarray
    """l, the sum of exp(s - m) over the row; 1 in a row that sees nothing."""
    weights: np.ndarray
    o: np.ndarray


@dataclasses.dataclass(frozen=True)
class Backward:
    """The backward pass, with what its error bounds need. All float64."""

    do: np.ndarray
    """The cotangent of o, as given: the row sums of o do are no matrix product."""
    do_read: np.ndarray
    """The cotangent as the matrix products read it."""
    saved_o: np.ndarray
    """The output that the row sums of o do use: the true one, or the kernel's own."""
    shift: np.ndarray
    """Weights are exp(shift - depth) / divisor; with the kernel's own m, shift = m_true - m."""
    p: np.ndarray
    dp: np.ndarray
    di: np.ndarray
    """Row sums of o do."""
    ds: np.ndarray
    """Gradient with respect to the bias, dab; carries sm_scale."""
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def visibility(
    lengths: tuple[int, int], ab: np.ndarray | None, segment_ids: Any, causal: bool
) -> np.ndarray:
    """Which keys each query may see: bool, broadcasts to [B, H, Sq, Skv].

    lengths: (Sq, Skv). segment_ids: a pair (q [B, Sq], kv [B, Skv]), an object with fields `q` and
    `kv`, or None. Causal order is aligned at the top left, whatever the lengths.
    """
    visible = np.ones((1, 1, *lengths), bool)
    if causal:
        visible = np.tril(visible)
    if segment_ids is not None:
        pair = (segment_ids.q, segment_ids.kv) if hasattr(segment_ids, "q") else segment_ids
        of_query, of_key = (np.asarray(half) for half in pair)
        visible = visible & (of_query[:, None, :, None] == of_key[:, None, None, :])
    if ab is not None:
        visible = visible & (ab != -np.inf)
    return visible


def forward(
    q: Any,
    k: Any,
    v: Any,
    ab: Any = None,
    segment_ids: Any = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
    rounds_inputs: bool = False,
) -> Forward:
    """Attention, with operands rounded to bfloat16 first if `rounds_inputs`."""
    q, k, v = (
        BFLOAT16.round(float64(array)) if rounds_inputs else float64(array) for array in (q, k, v)
    )
    scale = float(sm_scale)
    bias = None if ab is None else float64(ab)
    visible = visibility((q.shape[2], k.shape[2]), bias, segment_ids, causal)
    products = q @ transpose(k)
    unscaled = products
    if bias is not None:
        unscaled = products + np.where(visible, bias, 0.0)
    logits = unscaled * scale
    if bias is not None:
        # The most negative finite bias times a scale above 1 overflows to -inf in float32, and
        # hides the position as a bias of -inf would.
        visible = visible & (logits > -FLOAT32.overflow)
    logits = np.where(visible, logits, -np.inf)
    m = np.max(logits, axis=-1, keepdims=True)
    rows = m > -np.inf
    m = np.where(rows, m, 0.0)
    depth = m - logits
    weights = np.exp(-depth)
    total = np.where(rows, row_sum(weights), 1.0)
    weights /= total
    return Forward(
        q=q,
        k=k,
        v=v,
        scale=scale,
        biased=bias is not None,
        visible=visible,
        rows=rows,
        products=products,
        unscaled=unscaled,
        depth=depth,
        m=m,
        total=total,
        weights=weights,
        o=weights @ v,
    )


def saved_residuals(true: Forward, residuals: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """(o, shift, divisor) from the kernel's own (o, l, m) or (o, lse); see `Backward.shift`.

    Residuals of rows that see nothing may be anything, and are replaced.
    """
    saved_o = np.where(true.rows, float64(residuals[0]), 0.0)
    peak = float64(residuals[-1])[..., None]
    shift = np.where(true.rows, true.m - peak, 0.0)
    if len(residuals) == 2:
        return saved_o, shift, np.ones_like(shift)
    return saved_o, shift, np.where(true.rows, float64(residuals[1])[..., None], 1.0)


def backward(
    true: Forward, do: Any, residuals: tuple[Any, ...] | None = None, *, rounds_inputs: bool = False
) -> Backward:
    """Gradients of sum(o do), from the true forward or from the residuals a kernel has saved."""
    do = float64(do)
    do_read = BFLOAT16.round(do) if rounds_inputs else do
    if residuals is None:
        saved_o, shift, p = true.o, np.zeros_like(true.m), true.weights
    else:
        saved_o, shift, divisor = saved_residuals(true, residuals)
        # Residuals of a faulty kernel may overflow here; what follows is then NaN, never a pass.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            p = np.exp(shift - true.depth) / divisor
    with np.errstate(over="ignore", invalid="ignore"):
        dp = do_read @ transpose(true.v)
        di = row_sum(saved_o * do)
        ds = (dp - di) * p * true.scale
        return Backward(
            do=do,
            do_read=do_read,
            saved_o=saved_o,
            shift=shift,
            p=p,
            dp=dp,
            di=di,
            ds=ds,
            dq=ds @ true.k,
            dk=transpose(ds) @ true.q,
            dv=transpose(p) @ do_read,
        )
