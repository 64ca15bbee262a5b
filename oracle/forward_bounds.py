"""How far o, l, m and log-sum-exp of a correct kernel may be from the truth, element by element.

The bounds are rigorous: they hold for every order of summation, every tiling up to the stated
number of tiles, and every choice of the roundings that `Arithmetic` allows. Derivations, with u the
unit roundoff, E a bound on an error and |A| elementwise:

Sums. Every node of any summation tree over terms y_1..y_n is the sum of a subset, so it lies in
[-N, P] with P + N = sum|y| and P - N = the total; hence |node| <= (sum|y| + |total|) / 2. That is
half of the classical n u sum|y| where the total is small.

Softmax. An error e_j in the logarithm of each weight moves the output by exactly
sum_j w_j (exp(e_j) - 1)(v_j - o) / sum_k w_k exp(e_k), because sum_j w_j (v_j - o) = 0: what a row
has in common, such as the error of its maximum, drops out (Blanchard, Higham and Higham 2021,
"Accurately computing the log-sum-exp and softmax functions": the shift cancels).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle.attention import Forward, row_sum, transpose
from oracle.rounding import SMALLEST_NORMAL, Arithmetic

HOPELESS = 20.0
"""Logarithm of a weight's relative error beyond which nothing useful is known about the row."""

VANISHED = 90.0
"""exp(-90) < 2**-126 even after its own roundings: a key this far below the maximum, beyond doubt,
has a weight that may be flushed, and its relative error means nothing."""

DEEPEST = 128.0
"""Depth below the maximum beyond which a rounding of the depth moves a flushed weight only."""

_FLOAT64_CANCELLATION = 1e-13
"""Relative error of a sum of a few thousand float64 terms: what the oracle's own cancellation can
leave of a variance that is exactly 0."""


def slack(model: Arithmetic, roundings: int) -> float:
    """Factor on a first-order bound that covers products of errors.

    n roundings in sequence err by n u / (1 - n u) at most (Higham's gamma). The hundredth covers
    products of an error with a cast (2**-8) where the formula does not hold them explicitly.
    """
    return 1.01 / (1.0 - min(roundings * model.unit, 0.5))


def product_error(
    model: Arithmetic, magnitudes: np.ndarray, value: np.ndarray, length: int
) -> np.ndarray:
    """Error of dot products of `length` terms: `value`, with sums |a||b|^T of `magnitudes`."""
    per_term = model.unit * (model.product + 0.5 * (length - 1)) * (1 + length * model.unit)
    per_term += model.operand * (2 + model.operand)
    error = per_term * magnitudes
    error += (0.5 * model.unit * (length - 1)) * np.abs(value)
    return error


def flushed_products(rows: np.ndarray, columns: np.ndarray, length: int) -> np.ndarray:
    """What flushing adds to `rows` @ `columns`^T: terms, partial sums, and operands read as 0."""
    of_rows = row_sum(rows) + 2 * length
    return SMALLEST_NORMAL * (of_rows + transpose(row_sum(columns)))


@dataclasses.dataclass(frozen=True)
class ForwardBounds:
    """Bounds of the forward pass, and the weights' errors that the backward builds on."""

    outputs: dict[str, np.ndarray]
    """Bounds on o [B, H, Sq, D] and on l, m and lse [B, H, Sq]."""
    untested: np.ndarray
    """bool [B, H, Sq, 1]: rows too ill-conditioned for a bound."""
    floor: np.ndarray
    """Absolute error of a weight by flushing; 0 at hidden positions. Broadcasts."""
    growth: np.ndarray
    """exp(bound on the log of a weight's relative error) - 1."""
    weight_error: np.ndarray
    least_total: np.ndarray
    """The least that the weights can sum to, of 1."""
    total_error: np.ndarray
    """Relative error of l by its weights; `summing` is the one by adding them up."""
    summing: float
    rescaling: float
    """Roundings of an element of o that are no additions, in units of u."""
    finite_o: np.ndarray
    """Bound on o before untested rows are given up: finite everywhere."""
    normalised: np.ndarray
    """The most that a normalised weight can be."""


def logit_error(true: Forward, model: Arithmetic) -> np.ndarray:
    """Bound on |s_kernel - s|, [B, H, Sq, Skv]; at hidden positions finite and meaningless."""
    length = true.q.shape[-1]
    abs_q, abs_k = np.abs(true.q), np.abs(true.k)
    error = product_error(model, abs_q @ transpose(abs_k), true.products, length)
    error += flushed_products(abs_q, abs_k, length)
    on_total = model.scaling(true.scale) + (model.unit if true.biased else 0.0)
    if on_total:
        error += on_total * np.abs(true.unscaled)
    error *= abs(true.scale)
    # The bias, the addition and the scaling may each be flushed.
    error += SMALLEST_NORMAL * (1 + 2 * abs(true.scale))
    return error


def peak_error(true: Forward, error: np.ndarray) -> np.ndarray:
    """Bound on |m_kernel - m|: from the maximum over the highest and over the lowest logits."""
    highest = np.max(error - true.depth, axis=-1, keepdims=True)
    lowest = np.max(-error - true.depth, axis=-1, keepdims=True)
    return np.where(true.rows, np.maximum(highest, -lowest), 0.0)


def forward_bounds(true: Forward, model: Arithmetic) -> ForwardBounds:
    """Bounds on o, l, m and lse; infinite where nothing can be said.

    l is bounded given the kernel's own m: it is compared with l exp(m - m_kernel), since l alone is
    no function of the inputs.
    """
    u, tiles, keys = model.unit, model.kv_tiles, true.k.shape[2]
    first_order = slack(model, true.q.shape[-1] + keys + 7 * tiles + 10)
    error = logit_error(true, model)
    m_error = peak_error(true, error)

    # The exponent's roundings telescope over the tiles (m1 - s, m2 - m1, ...); exp's own do not.
    log_error = np.minimum(true.depth, DEEPEST)
    log_error *= model.exponent_roundings * u
    log_error += error
    log_error += tiles * model.exp + (tiles - 1) * u
    log_error *= first_order
    error += VANISHED + m_error
    log_error[true.depth > error] = 0.0
    untested = ~(np.max(log_error, axis=-1, keepdims=True) <= HOPELESS)
    np.minimum(log_error, HOPELESS, out=log_error)
    growth = np.expm1(log_error, out=log_error)

    weighted = true.weights * growth
    total_error = row_sum(weighted)
    least_total = 1.0 - row_sum(weighted / (1.0 + growth))
    # exp may flush, and so may the factor that rescales what came before a new maximum.
    floor = (2 * SMALLEST_NORMAL) * true.visible
    weighted += floor
    weight_error = weighted

    summing = u * (keys - 1 + 2 * tiles) + model.p_to_sum
    relative_l = total_error + summing * (1 + total_error)
    l_error = first_order * true.total * relative_l + 2 * (keys + tiles) * SMALLEST_NORMAL
    log_total = np.log(true.total)
    lse_error = np.log1p(total_error) + summing + 4 * u * (np.abs(true.m) + log_total + 1)
    lse_error = first_order * (lse_error + model.log * log_total)

    # A kernel that renormalises in every tile rescales by l_old/l_new (a correction, a reciprocal,
    # their product), multiplies and adds: 5 a tile, 3 for the last division. Reciprocals may be
    # rough.
    rescaling = 5 * tiles + 3 + (tiles + 1) * model.quotient / u
    abs_v, abs_o = np.abs(true.v), np.abs(true.o)
    average_error, value_error, magnitude_error = np.split(
        weight_error @ np.concatenate([true.v, true.v * true.v, abs_v], axis=-1), 3, axis=-1
    )
    error_sum = row_sum(weight_error)
    # Cauchy-Schwarz on sum a|v - o| keeps the cost at matrix products.
    variance = value_error * (1 + _FLOAT64_CANCELLATION)
    variance += true.o * (true.o * error_sum - 2 * average_error)
    variance = np.maximum(variance, _FLOAT64_CANCELLATION * value_error)
    moved = np.sqrt(error_sum * variance)
    np.minimum(moved, magnitude_error + abs_o * error_sum, out=moved)
    moved /= least_total
    spread = np.max(true.v, axis=2, keepdims=True) - np.min(true.v, axis=2, keepdims=True)
    np.minimum(moved, spread, out=moved)  # any weights average to something within the values

    normalised = np.minimum((true.weights + weight_error) / least_total, 1.01)
    terms = normalised @ abs_v
    per_term = model.p_to_v + model.operand * (2 + model.operand)
    per_term += u * (0.5 * (keys - 1) + model.product + rescaling)
    o_error = moved + per_term * (1 + model.p_to_v + model.operand) * terms
    o_error += (0.5 * u * (keys - 1) + summing) * (abs_o + moved)
    o_error *= first_order
    o_error += (2 * keys + rescaling) * SMALLEST_NORMAL
    o_error = np.where(true.rows, o_error, 0.0)

    unknown = untested | ~true.rows
    return ForwardBounds(
        outputs={
            "o": np.where(untested, np.inf, o_error),
            "l": np.where(unknown, np.inf, l_error)[..., 0],
            "m": np.where(true.rows, first_order * m_error, np.inf)[..., 0],
            "lse": np.where(unknown, np.inf, lse_error)[..., 0],
        },
        untested=untested,
        floor=floor,
        growth=growth,
        weight_error=weight_error,
        least_total=least_total,
        total_error=total_error,
        summing=summing,
        rescaling=rescaling,
        finite_o=o_error,
        normalised=normalised,
    )
