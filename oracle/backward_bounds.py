"""How far dq, dk, dv and dab of a correct kernel may be from the truth, element by element.

Two truths. End to end: the gradients of the definition, from a forward with errors of its own.
Conditional: the gradients that follow from the o, l and m (or log-sum-exp) which the kernel itself
has saved, so that no error of the forward hides one of the backward; it needs the forward checked
beside it, and is then much the sharper.

With p the weights, dp = do v^T, di = row sums of o do and y = dp - di, the gradient of the logits
is ds = sm_scale p y; dv = p^T do, dk = ds^T q, dq = ds k. Rounding model and sums as in
`forward_bounds`. Errors of l and of di are common to a row: they move dq by a multiple of
|sum_j p_j k_j| and of |dq|, not of the sums of magnitudes.
"""

from __future__ import annotations

import numpy as np

from oracle.attention import Backward, Forward, row_sum, transpose
from oracle.forward_bounds import HOPELESS, ForwardBounds, flushed_products, product_error, slack
from oracle.rounding import BFLOAT16, SMALLEST_NORMAL, Arithmetic

_RECOMPUTING = 3
"""Roundings of a recomputed weight beside exp: 1/l, the product by it, and one to spare."""

_DIFFERENTIATING = 4
"""Roundings of ds = sm_scale p (dp - di): difference, two products, sm_scale as float32."""


def row_dots(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Dot products of matching rows, the last axis kept with length 1."""
    return np.vecdot(left, right)[..., None]


def saved_di_error(grads: Backward, model: Arithmetic, o_error: np.ndarray | float) -> np.ndarray:
    """Bound on di = sum o do by its own products and sum, and by an error of di from elsewhere."""
    u, length = model.unit, grads.do.shape[-1]
    abs_o, abs_do = np.abs(grads.saved_o), np.abs(grads.do)
    terms = row_dots(abs_o, abs_do) + o_error
    error = u * (0.5 * (length - 1) * (terms + np.abs(grads.di) + o_error) + terms)
    flushed = SMALLEST_NORMAL * (row_sum(abs_o) + row_sum(abs_do) + 2 * length)
    return error + o_error + flushed


def propagated_di_error(
    true: Forward, grads: Backward, ahead: ForwardBounds, model: Arithmetic, products: np.ndarray
) -> np.ndarray:
    """Bound on the error of di that comes with o, through dp: sharper than sum E_o |do| by sqrt(D).

    products: |do| |v|^T.
    """
    u, keys = model.unit, true.k.shape[2]
    abs_do = np.abs(grads.do)
    dp = grads.dp
    if grads.do is not grads.do_read:
        dp = grads.do @ transpose(true.v)
        products = (1 + 2 * BFLOAT16.unit_roundoff) * products
    error = row_dots(ahead.weight_error, np.abs(dp - grads.di)) / ahead.least_total
    error += (model.p_to_v + model.operand) * row_dots(ahead.normalised, np.abs(dp))
    terms = row_dots(ahead.normalised, products)
    error += model.operand * (1 + model.operand) * terms
    error += ahead.summing * (np.abs(grads.di) + error)
    error += u * 0.5 * (keys - 1) * (terms + row_dots(np.abs(true.o), abs_do))
    error += u * (ahead.rescaling + model.product) * terms
    error += (2 * keys + ahead.rescaling) * SMALLEST_NORMAL * row_sum(abs_do)
    if model.output:
        error += row_dots(BFLOAT16.half_ulp(np.abs(true.o) + ahead.finite_o), abs_do)
    return error


def recomputed_weights(
    true: Forward, grads: Backward, ahead: ForwardBounds, model: Arithmetic, *, conditional: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """exp(bound on the log of the relative error of p) - 1: (of each weight, common to the row).

    The logit again, one exp instead of one a tile, then 1/l. What the saved l is off is common.
    Third, bool [B, H, Sq, 1]: the rows of whose weights nothing is known.
    """
    u = model.unit
    first_order = slack(model, true.k.shape[2] + 7 * model.kv_tiles + 20)
    change = _RECOMPUTING * u + model.quotient - (model.kv_tiles - 1) * (model.exp + u)
    if conditional:
        common = np.zeros_like(true.m)
        change = change + model.exponent_roundings * u * np.abs(grads.shift)
    else:
        common = np.log1p(ahead.total_error) + ahead.summing
        if model.saves_lse:
            log_total = np.log(true.total)
            common += 2 * u * (np.abs(true.m) + log_total + 1) + model.log * log_total
            change = change + model.exponent_roundings * u * log_total
    unknown = ahead.untested | ~(change + common <= HOPELESS)
    change, common = np.minimum(change, HOPELESS), np.minimum(common, HOPELESS)
    growth = ahead.growth + np.expm1(first_order * change) * (1 + ahead.growth)
    return growth, np.expm1(first_order * common), unknown


def term_error(model: Arithmetic, cast: float, terms: int, tiles: int) -> float:
    """Relative error of a term of dq, dk or dv: the cast of p or ds, its product and its sum."""
    first = cast + model.operand * (2 + model.operand)
    first += model.unit * (0.5 * (terms - 1) + model.product + tiles)
    return first * (1 + cast + model.operand)


def backward_bounds(
    true: Forward, grads: Backward, ahead: ForwardBounds, model: Arithmetic, *, conditional: bool
) -> dict[str, np.ndarray]:
    """Bounds on dq, dk, dv and dab; `conditional` on the residuals that `grads` was computed from.

    Infinite where nothing can be said, 0 where a gradient must be exactly 0.
    """
    u, c = model.unit, abs(true.scale)
    queries, keys, length = true.q.shape[2], true.k.shape[2], true.q.shape[3]
    first_order = slack(model, length + queries + keys + 7 * model.kv_tiles + 20)
    abs_do, abs_v, abs_ds = np.abs(grads.do_read), np.abs(true.v), np.abs(grads.ds)

    products = abs_do @ transpose(abs_v)
    dp_error = product_error(model, products, grads.dp, length)
    dp_error += flushed_products(abs_do, abs_v, length)
    inherited: np.ndarray | float = 0.0
    if not conditional:
        inherited = propagated_di_error(true, grads, ahead, model, products)
    di_error = first_order * saved_di_error(grads, model, inherited)

    growth, common, unknown = recomputed_weights(true, grads, ahead, model, conditional=conditional)
    p_error = grads.p * (growth + common * (1 + growth)) + ahead.floor
    p_most = grads.p + p_error

    dv_terms = p_error + term_error(model, model.p_to_do, queries, model.q_tiles) * p_most
    dv = transpose(dv_terms) @ abs_do + 0.5 * u * (queries - 1) * np.abs(grads.dv)
    dv = first_order * dv + (2 * queries + model.q_tiles + 2) * SMALLEST_NORMAL

    # ds_kernel - ds = sm_scale (p_error y + p_most (dp_error - di_error)), and its own roundings.
    y = c * np.abs(grads.dp - grads.di)
    from_dp = c * p_most * dp_error
    rounded = _DIFFERENTIATING * u if model.scaling(true.scale) < 1 else 1.0
    flushed = (1 + 2 * c) * ahead.floor
    dab = from_dp + (c * di_error) * p_most + y * p_error
    ds_most = abs_ds + dab
    dab = first_order * (dab + rounded * ds_most) + flushed
    ds_cast = abs_ds + dab

    dk_terms = dab + term_error(model, model.ds_to_q, queries, model.q_tiles) * ds_cast
    dk = transpose(dk_terms) @ np.abs(true.q) + 0.5 * u * (queries - 1) * np.abs(grads.dk)
    dk = first_order * dk + (1 + c) * (2 * queries + model.q_tiles + 2) * SMALLEST_NORMAL
    dk += SMALLEST_NORMAL * transpose(np.sum(ds_cast, axis=-2, keepdims=True))  # q read as 0

    # The same errors of ds, less what the row has in common.
    dq_terms = (1 + common) * (abs_ds * growth + 2 * y * ahead.floor)
    dq_terms += from_dp + (c * di_error) * p_error + rounded * ds_most + flushed
    dq_terms += term_error(model, model.ds_to_k, keys, model.kv_tiles) * ds_cast
    dq = dq_terms @ np.abs(true.k) + (c * di_error) * np.abs(grads.p @ true.k)
    dq += (common + 0.5 * u * (keys - 1)) * np.abs(grads.dq)
    dq = first_order * dq + (1 + c) * (2 * keys + model.kv_tiles + 2) * SMALLEST_NORMAL
    dq += SMALLEST_NORMAL * row_sum(ds_cast)  # k read as 0

    seen = np.any(true.visible, axis=-2)[..., None]
    dq, dk, dv = np.where(true.rows, dq, 0.0), np.where(seen, dk, 0.0), np.where(seen, dv, 0.0)

    # With a cotangent of 0 a row adds nothing, whatever its weights.
    lost = unknown & np.any(grads.do != 0, axis=-1, keepdims=True)
    if np.any(lost):
        lost_pairs = true.visible & lost
        lost_keys = np.any(lost_pairs, axis=-2)[..., None]
        dab, dq = np.where(lost_pairs, np.inf, dab), np.where(lost, np.inf, dq)
        dk, dv = np.where(lost_keys, np.inf, dk), np.where(lost_keys, np.inf, dv)
    return {"dq": dq, "dk": dk, "dv": dv, "dab": dab}
