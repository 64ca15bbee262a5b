"""What the errors of one output say together, where none of them says anything by itself.

A bound allows every rounding to do its worst at once. Real roundings do not, and a fault that moves
all elements a little, in float32 or below what bfloat16 casts hide, moves sums over them far. Each
statistic has a limit that follows from how it spreads over correct kernels on random data:

rms     root mean square of error over predicted spread. Correct kernels give 0.95 to 1.03 where
        casts to bfloat16 dominate, up to 1.14 where float32 does (it is less where sums go better
        than in a random order). Limits 1.15 and 2.
row     the same in the worst row of head_dim elements. Up to 1.9 and 4.5. Limits 4 and 8.
bias    how many standard deviations the errors are from having nothing in common with the truth,
        by the matched filter for error = beta truth: a cut instead of a rounding, a scale that is
        off. Up to 10 in bfloat16 if elements are counted as independent, which is not done here.
        Limit 25.
paired  rms over that of an emulation on the same data, which rounds at the same places. Correct
        kernels agree within 4 % in bfloat16; in float32, where the order of sums shows and what is
        saved, within 1.39 times. Limits 1.05 and 1.5.

The limits of rms, row and bias are for data without ties (`is_generic`) in rows that are not
ill-conditioned, in outputs of thousands of elements.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from oracle.rounding import BFLOAT16, Arithmetic
from oracle.variance import is_rough

_LEAST_SPREAD = 2.0**-100
"""Below it what is flushed to zero, 2**-126, is no longer small beside roundings in float32."""

_OWN_SCALE = 4
"""Roundings that all elements may have in common: sm_scale as float32, log2(e)."""

_PROJECTION_SEED = 0

CAST = frozenset({"o", "dq", "dk", "dv"})
"""Outputs whose errors are mostly those of the casts of p and ds, where a model has such."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that each statistic is in a correct kernel; infinite where it says nothing."""

    rms: float
    row: float
    bias: float
    paired: float


NARROW = Limits(rms=1.15, row=4.0, bias=25.0, paired=1.05)
WIDE = Limits(rms=2.0, row=8.0, bias=math.inf, paired=1.5)
UNKNOWN = Limits(rms=math.inf, row=math.inf, bias=math.inf, paired=math.inf)


def limits(model: Arithmetic, output: str, dtype: str) -> Limits:
    """The limits for one output of that dtype: NARROW where casts to bfloat16 dominate, else WIDE.

    Errors of a rough exp, which may agree, are seen only where no casts hide them: no limits there.
    """
    casts = output in CAST and model.p_to_v > 0
    found = UNKNOWN if is_rough(model) else WIDE
    if casts or dtype == BFLOAT16.name:
        found = NARROW
    if output not in CAST:
        # A row of l or m is one element, and no other than these four was compared in pairs.
        found = dataclasses.replace(found, row=math.inf, paired=math.inf)
    return found


@dataclasses.dataclass(frozen=True)
class Deviations:
    """The errors of one output by their predicted spread.

    scaled: (got - truth) / spread, of the output's shape. judged: bool, likewise: where roundings
    decide about the error. truth: in units of the spread too.
    """

    scaled: np.ndarray
    judged: np.ndarray
    truth: np.ndarray

    @classmethod
    def of(cls, got: Any, truth: np.ndarray, spread: np.ndarray) -> Deviations:
        """Of `got`, any floating dtype, from float64 `truth` with the `spread` of a standard
        deviation. Elements of no spread, which must be exact, or of an infinite one, are left
        out."""
        judged = (spread > _LEAST_SPREAD) & np.isfinite(spread)
        unit = np.where(judged, spread, 1.0)
        expected = np.where(judged, truth, 0.0)
        found = np.where(judged, np.asarray(got).astype(np.float64), 0.0)
        return cls((found - expected) / unit, judged, expected / unit)

    @property
    def rms(self) -> float:
        """Root mean square; 0 where nothing is judged."""
        return math.sqrt(np.sum(self.scaled**2) / max(int(self.judged.sum()), 1))

    @property
    def rows(self) -> np.ndarray:
        """Root mean square of each row, the last axis."""
        counts = np.maximum(self.judged.sum(axis=-1), 1)
        return np.sqrt(np.sum(self.scaled**2, axis=-1) / counts)

    def bias(self, model: Arithmetic) -> float:
        """Standard deviations of beta from 0 in the best fit error = beta truth, less what a few
        roundings in common explain.

        A large weight gives all head_dim elements of a row the same relative error, so that a row
        says less than as many independent elements. How much less the residuals of the fit tell:
        the sums over rows, which are independent, have the variance that counts.
        """
        power = float(np.sum(self.truth**2))
        if power == 0:
            return 0.0
        beta = float(np.sum(self.scaled * self.truth)) / power
        left = (self.scaled - beta * self.truth) * self.truth
        apart = float(np.sum(left**2))
        together = float(np.sum(np.sum(left, axis=-1) ** 2))
        inflation = math.sqrt(max(together / apart, 1.0)) if apart else 1.0
        return max(abs(beta) - _OWN_SCALE * model.unit, 0.0) * math.sqrt(power) / inflation


def is_generic(*arrays: Any) -> bool:
    """Whether arrays of rows have no ties or constants, which make roundings coherent.

    Of the rows that are not 0 at least nine in ten differ from every other, and within at least
    half of the rows at least half of the magnitudes differ from their neighbour in size.
    """
    return all(_has_no_ties(np.asarray(array).astype(np.float64)) for array in arrays)


def _has_no_ties(array: np.ndarray) -> bool:
    rows = array.reshape(-1, array.shape[-1])
    rows = rows[np.any(rows != 0, axis=-1)]
    if not len(rows):
        return False
    # Rows are equal where a random projection of them is.
    projection = np.random.default_rng(_PROJECTION_SEED).standard_normal(rows.shape[-1])
    if len(np.unique(rows @ projection)) < 0.9 * len(rows):
        return False
    magnitudes = np.sort(np.abs(rows), axis=-1)
    distinct = np.mean(np.diff(magnitudes, axis=-1) != 0, axis=-1)
    return bool(np.median(distinct) >= 0.5)
