"""Floating-point formats, what rounds to a given number, and the arithmetic a kernel claims.

Arithmetic model, for every elementary operation: fl(a op b) = (a op b)(1 + d) with |d| <= u, plus
an absolute error below the smallest normal number wherever a result may be flushed to zero.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

SMALLEST_NORMAL = 2.0**-126
"""Below it float32 and bfloat16 results may be flushed to zero; XLA's CPU exp flushes there too."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary format with float32's exponents; `significand` counts the hidden bit too."""

    name: str
    significand: int

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest: 2**-significand (2**-8 for bfloat16)."""
        return 2.0**-self.significand

    @property
    def overflow(self) -> float:
        """Least magnitude that rounds to infinity: half an ulp above the largest finite one."""
        return 2.0**128 - 2.0 ** (127 - self.significand)

    def half_ulp(self, values: np.ndarray) -> np.ndarray:
        """Half the spacing of the format just above |values|: float64, of the shape of `values`."""
        _, exponent = np.frexp(np.maximum(np.abs(values), SMALLEST_NORMAL))
        return np.ldexp(0.5, exponent - self.significand)

    def round(self, values: np.ndarray) -> np.ndarray:
        """`values` rounded to nearest, ties to even, as float64; beyond the range, infinity."""
        ulp = 2 * self.half_ulp(values)
        rounded = np.rint(values / ulp) * ulp
        return np.where(np.abs(rounded) >= self.overflow, np.copysign(np.inf, values), rounded)

    def cell(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The closed interval (low, high) of the reals that may round to each of `values`.

        Half an ulp either side; towards zero a quarter at a power of two, where the spacing
        changes. Zero stands for everything that may be flushed, infinity for all that overflows.
        """
        values = np.asarray(values, np.float64)
        magnitude = np.abs(values)
        half = self.half_ulp(magnitude)
        fraction, _ = np.frexp(magnitude)
        spacing_halves = (fraction == 0.5) & (magnitude > SMALLEST_NORMAL)
        inner = magnitude - np.where(spacing_halves, 0.5 * half, half)
        inner = np.where(np.isinf(magnitude), self.overflow, inner)
        outer = magnitude + half
        low = np.where(values < 0, -outer, inner)
        high = np.where(values < 0, -inner, outer)
        zero = values == 0
        return np.where(zero, -SMALLEST_NORMAL, low), np.where(zero, SMALLEST_NORMAL, high)


BFLOAT16 = Format("bfloat16", 8)
FLOAT32 = Format("float32", 24)


def distance(truth: np.ndarray, got: np.ndarray) -> np.ndarray:
    """How far `truth` (float64) is from the reals that `got` may stand for, elementwise.

    The cell of a bfloat16 `got`, so that the cast of an output is judged exactly instead of being
    added to its bound. A float32 `got` stands for itself: the kernel computes in float32, and the
    bounds already count its last rounding. NaN wherever either is NaN.
    """
    if got.dtype.name == BFLOAT16.name:
        low, high = BFLOAT16.cell(got)
        return np.maximum(np.maximum(low - truth, truth - high), 0.0)
    return np.abs(got.astype(np.float64) - truth)


_DIVIDED: dict[str, tuple[float, float]] = {
    # a = a1 + a2 + r, each at most 2**-8 of the one before. Kept are a1 b1, a1 b2 and a2 b1; left
    # out is at most (2**-16 + 2 2**-16) |a b|, less than two operands that are 2**-15 off.
    "bfloat16x3": (2.0**-15, 3.0),
    # a = a1 + a2 + a3 exactly. Left out are a2 b3, a3 b2 and a3 b3, 2 u |a b| and a trifle; each of
    # the six that are kept is exact and summed over the axis by itself, and the sums are added up.
    "bfloat16x6": (0.0, 8.0),
}
"""By what is divided into parts: the operands' error, and the roundings of a product in units u."""


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The roundings that a kernel may make; everything else it does must be exact.

    Relative errors, unless said otherwise. The defaults are float32 throughout, one tile.
    """

    unit: float = FLOAT32.unit_roundoff
    """Accumulation and elementwise operations."""
    product: float = 1.0
    """1 where the products of a matrix product round by themselves, 0 where they are exact (two
    bfloat16 in float32) or fused."""
    operand: float = 0.0
    """Rounding of every matrix operand that the oracle cannot repeat."""
    rounds_inputs: bool = False
    """q, k, v and do are rounded to bfloat16 before they enter a matrix product (float32 at the
    default precision of a TPU). The oracle rounds likewise, so this is no error."""
    p_to_v: float = 0.0
    """Cast of the weights before p v; `p_to_do` before the transposed p times do."""
    p_to_do: float = 0.0
    p_to_sum: float = 0.0
    """Cast of the weights before they are summed into l."""
    ds_to_q: float = 0.0
    """Cast of ds before the transposed ds times q; `ds_to_k` before ds k."""
    ds_to_k: float = 0.0
    output: float = 0.0
    """Cast of o, from which the backward computes the row sums of o do."""
    exp: float = 4 * FLOAT32.unit_roundoff
    """exp (or exp2) of an exact argument: 2 ulp."""
    quotient: float = 0.0
    """Error of a quotient beside its rounding, where it is a product with a rough reciprocal."""
    log: float = 0.0
    """Error of log(l) beside its rounding."""
    exponent_roundings: int = 3
    """Roundings of the argument of exp: the subtraction, the product by log2(e), that constant."""
    scale_roundings: int = 3
    """Roundings in proportion to a logit: sm_scale as float32, the product, folding in log2(e)."""
    kv_tiles: int = 1
    """Upper bound on the tiles of keys that the forward, and dq, run through."""
    q_tiles: int = 1
    """Upper bound on the tiles of queries that dk and dv run through."""
    saves_lse: bool = False
    """The forward saves m + log(l) in one number, instead of l and m."""

    @classmethod
    def of(
        cls,
        dtype: str,
        *,
        kv_tiles: int = 1,
        q_tiles: int = 1,
        scaled: bool = True,
        operands: Literal["exact", "bfloat16", "bfloat16x3", "bfloat16x6"] = "exact",
        sums_rounded_p: bool = False,
        saves_lse: bool = False,
        exp_ulps: float = 2.0,
        reciprocal_ulps: float = 0.0,
        log_ulps: float = 0.0,
    ) -> Arithmetic:
        """The arithmetic of a kernel for q, k and v of `dtype`, "float32" or "bfloat16".

        scaled: logits are multiplied by a constant, sm_scale or log2(e); False only for sm_scale 1
        with exp. operands: what float32 operands of matrix products are read as. "bfloat16":
        rounded to it. "bfloat16x3", "bfloat16x6": divided into bfloat16 parts, of which the
        products that matter are summed; a TPU does so at higher precisions. sums_rounded_p: l adds
        up weights already cast to v's dtype. exp_ulps: the largest error of exp, in units in the
        last place. reciprocal_ulps, log_ulps: that of 1/l, where a quotient is a product with it,
        and of log(l); 0 where they round as the other operations do.
        Raises ValueError for another dtype or another word for the operands.
        """
        if dtype not in (FLOAT32.name, BFLOAT16.name):
            raise ValueError(
                f"dtype={dtype!r}: an arithmetic is known for 'float32' and 'bfloat16'"
            )
        if operands not in ("exact", "bfloat16", *_DIVIDED):
            words = ", ".join(map(repr, ("exact", "bfloat16", *_DIVIDED)))
            raise ValueError(f"operands={operands!r}: must be one of {words}")
        if dtype == BFLOAT16.name:
            operands = "exact"
        rounds_inputs = operands == "bfloat16"
        operand, roundings = _DIVIDED.get(operands, (0.0, 1.0))
        narrow = dtype == BFLOAT16.name or rounds_inputs
        cast = BFLOAT16.unit_roundoff if narrow else 0.0
        return cls(
            product=0.0 if narrow else roundings,
            operand=operand,
            rounds_inputs=rounds_inputs,
            p_to_v=cast,
            p_to_do=cast,
            p_to_sum=cast if sums_rounded_p else 0.0,
            ds_to_q=cast,
            ds_to_k=cast,
            output=BFLOAT16.unit_roundoff if dtype == BFLOAT16.name else 0.0,
            scale_roundings=3 if scaled else 0,
            kv_tiles=kv_tiles,
            q_tiles=q_tiles,
            saves_lse=saves_lse,
            # An ulp is up to two unit roundoffs.
            exp=2 * exp_ulps * FLOAT32.unit_roundoff,
            quotient=2 * reciprocal_ulps * FLOAT32.unit_roundoff,
            log=2 * log_ulps * FLOAT32.unit_roundoff,
        )

    def scaling(self, sm_scale: float) -> float:
        """Relative error of multiplying a logit by `sm_scale`; 1 where a scale is flushed."""
        if 0 < abs(sm_scale) < SMALLEST_NORMAL:
            return 1.0
        return self.scale_roundings * self.unit
