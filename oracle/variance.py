"""How far the results of a correct kernel are from the truth by chance, element by element.

The same propagation as in `forward_bounds` and `backward_bounds`, with independent roundings: their
variances add up where the bounds add magnitudes. That is much less, and holds only where roundings
are independent, that is on data without ties (`statistics.is_generic`), in rows that are not
ill-conditioned. Two readings of one rounding whose largest relative error is u:

Predicted: a significand spread evenly in its logarithm has the root mean square error 0.425 u.
Likely: an error within u is sub-Gaussian of variance u**2 / 3 or less, so that a sum of independent
ones exceeds 8 standard deviations with probability 2 exp(-32), 2.5e-14 (Hoeffding).

Sums. Each of n additions rounds a partial sum. Over a random order of terms y_1..y_n of total x the
squares of the partial sums add up to n (sum y**2 / 6 + x**2 / 3) on average; "likely" takes half of
sum y**2 instead of a sixth, for orders less lucky.

Symbols as in `backward_bounds`. Products of errors are left out: errors are below 1/2.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from oracle.attention import Backward, Forward, row_sum, transpose
from oracle.backward_bounds import row_dots
from oracle.forward_bounds import DEEPEST, ForwardBounds, peak_error
from oracle.rounding import BFLOAT16, SMALLEST_NORMAL, Arithmetic

PREDICTED_ROUNDING = 0.425
"""sqrt(0.541 / 3): root mean square relative error of rounding, in units of the largest."""

SIGMAS = 8.0


def is_rough(model: Arithmetic) -> bool:
    """Whether exp, 1/l or log(l) may be off by more than roundings. Such errors follow from their
    argument, and may agree over a whole row: they are not independent."""
    return model.exp > Arithmetic.exp or model.quotient > 0 or model.log > 0


@dataclasses.dataclass(frozen=True)
class Roundings:
    """The variances of the roundings of a model, in one of the two readings."""

    model: Arithmetic
    likely: bool

    def of(self, unit: float) -> float:
        """Variance of one rounding of at most `unit`."""
        return unit**2 * (SIGMAS**2 / 3 if self.likely else PREDICTED_ROUNDING**2)

    def of_cast(self, values: np.ndarray) -> np.ndarray:
        """Variance of the rounding of `values` to bfloat16: uniform within half an ulp."""
        return BFLOAT16.half_ulp(values) ** 2 / 3 * (SIGMAS**2 if self.likely else 1.0)

    @property
    def unit(self) -> float:
        return self.of(self.model.unit)

    @property
    def operand(self) -> float:
        """Of both operands of a product."""
        return 2 * self.of(self.model.operand)

    @property
    def partial_sums(self) -> float:
        return 1 / 2 if self.likely else 1 / 6

    @property
    def scaling(self) -> float:
        """Of a logit, relative: all roundings that the model allows are more than most make."""
        count = self.model.scale_roundings
        return self.unit * (count if self.likely else min(count, 1))

    @property
    def exponent(self) -> float:
        """Of the argument of exp, relative; constants that are rounded are off the same way."""
        return self.unit * (self.model.exponent_roundings**2 if self.likely else 1)

    @property
    def exp(self) -> float:
        # A good exp errs by a quarter of what it may: 2 ulp where it mostly rounds correctly.
        return max(self.unit, self.model.exp**2) if self.likely else self.of(self.model.exp / 4)

    @property
    def rescaling(self) -> float:
        """Of an element of o by what are no additions, as in `forward_bounds`."""
        tiles = self.model.kv_tiles
        return self.unit * (5 * tiles + 3) + (tiles + 1) * self.of(self.model.quotient)

    def per_term(self, terms: int) -> float:
        """Of a sum of products, relative to its squared terms: products and partial sums."""
        return self.operand + self.unit * (self.partial_sums * terms + self.model.product)

    def per_sum(self, terms: int) -> float:
        """Of a sum of products, relative to its squared value."""
        return self.unit * terms / 3


@dataclasses.dataclass(frozen=True)
class ForwardVariance:
    """Variances of the forward pass, and of what the backward builds on."""

    outputs: dict[str, np.ndarray]
    """Of o [B, H, Sq, D] and of l, given m, and lse [B, H, Sq]; of m its standard deviation."""
    log_weight: np.ndarray
    """Of the logarithm of a weight by its logit, and by one exp."""
    weight: np.ndarray
    """Of a weight."""
    total: np.ndarray
    """Of l, relative, [B, H, Sq, 1]; `summing` is the part that comes of adding the weights up."""
    summing: np.ndarray


def logit_variance(true: Forward, by: Roundings) -> np.ndarray:
    """Variance of the logits, [B, H, Sq, Skv]; at hidden positions finite and meaningless."""
    length = true.q.shape[-1]
    variance = by.per_term(length) * ((true.q**2) @ transpose(true.k**2))
    variance += by.per_sum(length) * true.products**2
    variance += (by.scaling + (by.unit if true.biased else 0.0)) * true.unscaled**2
    return variance * true.scale**2


def forward_variance(true: Forward, ahead: ForwardBounds, by: Roundings) -> ForwardVariance:
    """Variances of o, l and lse."""
    tiles, keys = by.model.kv_tiles, true.k.shape[2]
    of_logit = logit_variance(true, by)
    log_weight = of_logit + by.exponent * np.minimum(true.depth, DEEPEST) ** 2 + by.exp
    growth = np.expm1(np.sqrt(log_weight + (tiles - 1) * (by.exp + by.unit)))
    weight = (true.weights * growth) ** 2
    squares, o = true.weights**2, true.o
    summing = by.unit * (keys / 3 + 2 * tiles) + by.of(by.model.p_to_sum) * row_sum(squares)
    total = row_sum(weight) + summing

    values = true.v**2
    moved = weight @ values - 2 * o * (weight @ true.v) + o**2 * row_sum(weight)
    of_o = np.maximum(moved, 0.0) / ahead.least_total**2
    per_value = by.of(by.model.p_to_v) + by.per_term(keys) + by.rescaling
    of_o += per_value * (squares @ values)
    of_o += (by.per_sum(keys) + by.rescaling + summing) * o**2

    log_total = np.log(true.total)
    lse = total + 4 * by.unit * (np.abs(true.m) + log_total + 1) ** 2
    lse += by.of(by.model.log) * log_total**2
    outputs = {
        "o": of_o,
        "l": (true.total**2 * total)[..., 0],
        "m": peak_error(true, np.sqrt(of_logit))[..., 0] ** 2,
        "lse": lse[..., 0],
    }
    return ForwardVariance(outputs, log_weight, weight, total, summing)


def di_variance(
    true: Forward,
    grads: Backward,
    ahead: ForwardBounds,
    forward: ForwardVariance,
    by: Roundings,
    products: np.ndarray,
) -> np.ndarray:
    """Variance of di that comes with o. products: do**2 (v**2)^T."""
    keys = true.k.shape[2]
    dp = grads.dp if grads.do is grads.do_read else grads.do @ transpose(true.v)
    squares = true.weights**2
    variance = row_dots(forward.weight, (dp - grads.di) ** 2) / ahead.least_total**2
    variance += by.of(by.model.p_to_v) * row_dots(squares, dp**2)
    variance += (by.per_term(keys) + by.rescaling) * row_dots(squares, products)
    of_o = by.per_sum(keys) + by.rescaling + forward.summing
    variance += of_o * row_dots(true.o**2, grads.do**2)
    if by.model.output:
        variance += row_dots(by.of_cast(true.o), grads.do**2)
    if by.likely:
        # Weights that are equal round equally: their errors do not average out.
        variance = (np.sqrt(variance) + by.model.p_to_v * np.abs(grads.di)) ** 2
    return variance


def backward_variance(
    true: Forward,
    grads: Backward,
    ahead: ForwardBounds,
    forward: ForwardVariance,
    by: Roundings,
    *,
    conditional: bool,
) -> dict[str, np.ndarray]:
    """Variances of dq, dk, dv and dab; `conditional` as in `backward_bounds`."""
    model, unit, c = by.model, by.unit, true.scale
    queries, keys, length = true.q.shape[2], true.k.shape[2], true.q.shape[3]
    do, k, q = grads.do_read**2, true.k**2, true.q**2

    products = do @ transpose(true.v**2)
    of_dp = by.per_term(length) * products + by.per_sum(length) * grads.dp**2
    terms = row_dots(grads.saved_o**2, grads.do**2)
    of_di = (by.unit * (by.partial_sums * length + 1)) * terms + by.per_sum(length) * grads.di**2
    # What a row has in common: the error of the l or lse that its weights are divided by.
    common = np.zeros_like(true.m)
    shift = np.abs(grads.shift)
    if not conditional:
        of_di += di_variance(true, grads, ahead, forward, by, products)
        common = forward.total
        if model.saves_lse:
            log_total = np.log(true.total)
            common = common + 2 * unit * (np.abs(true.m) + log_total + 1) ** 2
            common += by.of(model.log) * log_total**2
            shift = shift + log_total

    # The logit again, one exp, then 1/l, the product by it, and one to spare.
    depth = np.minimum(true.depth, DEEPEST)
    log_p = forward.log_weight + by.exponent * shift * (2 * depth + shift) + 3 * unit
    log_p += by.of(model.quotient)
    own = np.expm1(np.sqrt(log_p)) ** 2
    both = np.expm1(np.sqrt(log_p + common)) ** 2

    p, ds = grads.p**2, grads.ds**2
    of_dp *= c**2 * p
    of_di *= c**2
    dv_terms = p * (both + by.of(model.p_to_do) + by.per_term(queries) + unit * model.q_tiles)
    dq_terms = of_dp + ds * (own + 3 * unit + by.of(model.ds_to_k) + by.per_term(keys))
    dk_terms = of_dp + of_di * p
    dk_terms += ds * (both + 3 * unit + by.of(model.ds_to_q) + by.per_term(queries))
    return {
        "dq": dq_terms @ k
        + of_di * (grads.p @ true.k) ** 2
        + (common + by.per_sum(keys)) * grads.dq**2,
        "dk": transpose(dk_terms) @ q + by.per_sum(queries) * grads.dk**2,
        "dv": transpose(dv_terms) @ do + by.per_sum(queries) * grads.dv**2,
        "dab": of_dp + of_di * p + ds * (both + 3 * unit),
    }


def in_common(model: Arithmetic) -> dict[str, float]:
    """Relative error of each output that equal weights, which round equally, may have together."""
    return {
        "o": model.p_to_v,
        "dq": model.ds_to_k,
        "dk": model.ds_to_q,
        "dv": model.p_to_do,
    }


def flushing(true: Forward, grads: Backward | None) -> float:
    """What flushing to zero may add to any element of any output."""
    most = 1 + max(np.abs(operand).max() for operand in (true.q, true.k, true.v))
    terms = 2 * (true.q.shape[2] + true.k.shape[2])
    if grads is not None:
        most *= 1 + np.abs(grads.do).max()
        most *= 1 + abs(true.scale) * np.abs(grads.dp - grads.di).max()
    return float(SMALLEST_NORMAL * terms * most)
