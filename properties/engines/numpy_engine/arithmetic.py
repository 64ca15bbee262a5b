"""What the NumPy engine's programs compute with, where NumPy and XLA differ.

NumPy's own operators already do the rest as XLA does: float32 stays float32, integers wrap.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import ml_dtypes
import numpy as np

Array = Any  # an ndarray or a NumPy scalar: both carry a dtype and a shape

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def is_float(dtype: np.dtype) -> bool:
    """Whether dtype is floating point, the formats of ml_dtypes included."""
    return jax.dtypes.issubdtype(dtype, np.floating)


def is_narrow(dtype: np.dtype) -> bool:
    """Whether arithmetic on dtype is done in float32 and rounded once, to nearest even.

    Exact for + - * / and sqrt on bfloat16: float32 has more than twice its precision, so that
    rounding twice gives what rounding once would.
    """
    return is_float(dtype) and dtype.itemsize < 4


def poison(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Memory that nobody has written: NaN, or for integers the value farthest from use."""
    if is_float(dtype):
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    limits = ml_dtypes.iinfo(dtype)
    return np.full(shape, limits.min or limits.max, dtype)


def convert(value: Array, dtype: np.dtype) -> Array:
    """`lax.convert_element_type`: float to integer truncates and saturates, NaN becomes 0."""
    if dtype.kind == "b":
        return value != 0
    if is_float(value.dtype) and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wide = np.trunc(value.astype(np.float64))
        inside = np.clip(np.nan_to_num(wide, nan=0.0), limits.min, limits.max)
        # float64 cannot hold the 64-bit maxima: what rounds past them is set by hand.
        return np.where(inside >= limits.max, limits.max, inside.astype(dtype)).astype(dtype)
    return value.astype(dtype)


def bitcast(value: Array, dtype: np.dtype) -> Array:
    """`lax.bitcast_convert_type`: the last dimension appears or disappears with the width."""
    value = np.ascontiguousarray(value).reshape(value.shape)
    if value.dtype.itemsize == dtype.itemsize:
        return value.view(dtype)
    if value.dtype.itemsize > dtype.itemsize:
        return value[..., np.newaxis].view(dtype)
    return value.view(dtype)[..., 0]


def divide_integers(dividend: Array, divisor: Array) -> Array:
    """Integer division as XLA does it: truncated; x / 0 is -1, the minimum / -1 is itself."""
    if isinstance(dividend, np.integer) and isinstance(divisor, np.integer) and divisor > 0:
        # Index arithmetic, by far the most frequent.
        size = abs(int(dividend)) // int(divisor)
        return type(dividend)(size if dividend >= 0 else -size)
    divisor = np.asarray(divisor)
    safe = np.where(divisor == 0, divisor.dtype.type(1), divisor)
    quotient = np.floor_divide(dividend, safe)
    # Python rounds down, XLA towards zero.
    uneven = (quotient * safe != dividend) & ((dividend < 0) != (safe < 0))
    quotient = quotient + uneven.astype(quotient.dtype)
    return np.where(divisor == 0, ~divisor.dtype.type(0), quotient)[()]


def remainder_integers(dividend: Array, divisor: Array) -> Array:
    """Integer remainder as XLA does it: the dividend's sign; x % 0 is x."""
    divisor = np.asarray(divisor)
    safe = np.where(divisor == 0, divisor.dtype.type(1), divisor)
    return np.where(divisor == 0, dividend, np.fmod(dividend, safe))[()]


def power(base: Array, exponent: int) -> Array:
    """`base ** exponent` by repeated multiplication, as compilers expand it."""
    if exponent < 0:
        return base.dtype.type(1) / power(base, -exponent)
    result = np.ones_like(base)[()] if exponent == 0 else None
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        base, exponent = base * base, exponent >> 1
    return result


def reduce_precision(value: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """`lax.reduce_precision` for the formats that exist: rounds to them, and comes back."""
    formats = {(8, 7): _BFLOAT16, (5, 10): np.dtype(np.float16), (8, 23): np.dtype(np.float32)}
    return value.astype(formats[exponent_bits, mantissa_bits]).astype(value.dtype)


erf = np.frompyfunc(math.erf, 1, 1)


class DotGeneral:
    """`lax.dot_general` of operands wide enough to sum in; the result is rounded once, to `out`.

    Products of two bfloat16 numbers are exact in float32, so only their sum rounds.
    """

    def __init__(
        self,
        lhs: tuple[int, ...],
        rhs: tuple[int, ...],
        dimension_numbers: Any,
        out: np.dtype,
    ) -> None:
        (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = dimension_numbers
        lhs_free = [d for d in range(len(lhs)) if d not in (*lhs_contracted, *lhs_batch)]
        rhs_free = [d for d in range(len(rhs)) if d not in (*rhs_contracted, *rhs_batch)]
        batch = [lhs[d] for d in lhs_batch]
        rows, columns = [lhs[d] for d in lhs_free], [rhs[d] for d in rhs_free]
        summed = math.prod(lhs[d] for d in lhs_contracted)
        self.lhs_order = (*lhs_batch, *lhs_free, *lhs_contracted)
        self.rhs_order = (*rhs_batch, *rhs_contracted, *rhs_free)
        self.lhs_shape = (*batch, math.prod(rows), summed)
        self.rhs_shape = (*batch, summed, math.prod(columns))
        self.out_shape = (*batch, *rows, *columns)
        self.out = out

    def __call__(self, lhs: Array, rhs: Array) -> Array:
        product = np.matmul(
            lhs.transpose(self.lhs_order).reshape(self.lhs_shape),
            rhs.transpose(self.rhs_order).reshape(self.rhs_shape),
        )
        return product.reshape(self.out_shape).astype(self.out, copy=False)
