"""What a call must look like: every refusal that needs no kernel, before any kernel is traced.

Each message names the argument, the value it got, the rule, and what to do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kernel.blocks import BlockSizes

_FLOATS = ("float32", "bfloat16")


class SegmentIds(NamedTuple):
    """Which segment each position belongs to; a query sees only keys of its own segment.

    Attributes:
      q: [batch, q_len] integers of at most 32 bits, any values in any order.
      kv: [batch, kv_len], of the same dtype.
    """

    q: jax.Array
    kv: jax.Array


def check_call(q, k, v, ab, segment_ids, causal, sm_scale, block_sizes, debug) -> None:
    """Raises TypeError, ValueError or NotImplementedError where a call breaks a rule."""
    arrays = {"q": q, "k": k, "v": v} | ({} if ab is None else {"ab": ab})
    for name, array in arrays.items():
        _check_is_array(name, array)
    _check_segment_types(segment_ids)
    if block_sizes is not None and not isinstance(block_sizes, BlockSizes):
        raise TypeError(
            f"block_sizes must be None or a BlockSizes, got {type(block_sizes).__name__}; "
            "construct kernel.BlockSizes(...)"
        )
    _check_shapes(q, k, v, ab, segment_ids)
    _check_dtypes(q, k, v, ab, segment_ids)
    _check_scale(sm_scale)
    for name, flag in (("causal", causal), ("debug", debug)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name}={flag!r} must be a bool; pass True or False")
    if block_sizes is not None:
        block_sizes.check_shape(q.shape[0], q.shape[2], k.shape[2])


def _check_is_array(name: str, array: Any) -> None:
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        raise TypeError(
            f"{name} must be an array, got {type(array).__name__}; convert it with jnp.asarray"
        )


def _check_segment_types(segment_ids: Any) -> None:
    if segment_ids is None:
        return
    if not isinstance(segment_ids, SegmentIds):
        raise TypeError(
            f"segment_ids must be None or a SegmentIds, got {type(segment_ids).__name__}; "
            "construct kernel.SegmentIds(q, kv)"
        )
    for half, ids in segment_ids._asdict().items():
        if not (hasattr(ids, "shape") and hasattr(ids, "dtype")):
            raise TypeError(
                f"segment_ids.{half} must be an array, got {type(ids).__name__}; "
                "both halves are needed"
            )


def _check_shapes(q, k, v, ab, segment_ids) -> None:
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 4:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, but must have rank 4: "
                "(batch, heads, length, head_dim); reshape it"
            )
        if 0 in array.shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, but no dimension may be zero; "
                "leave out the call for an empty array"
            )
    batch, heads, q_len, head_dim = q.shape
    kv_len = k.shape[2]
    for name, array in (("k", k), ("v", v)):
        for axis, what, expected in ((0, "batch", batch), (1, "heads", heads)):
            if array.shape[axis] != expected:
                raise ValueError(
                    f"{name} has {what} {array.shape[axis]}, but q has {what} {expected}; "
                    "they must be equal (repeat shared heads before the call)"
                )
    if k.shape[3] != head_dim:
        raise ValueError(
            f"k has head_dim {k.shape[3]}, but q has head_dim {head_dim}; they must be equal"
        )
    if v.shape[2] != kv_len:
        raise ValueError(
            f"v has length {v.shape[2]}, but k has length {kv_len}; they must be equal"
        )
    if v.shape[3] != head_dim:
        raise NotImplementedError(
            f"v has head_dim {v.shape[3]}, but q has head_dim {head_dim}; unequal ones are not "
            "supported: pad the smaller with zeros"
        )
    shapes: list[tuple[str, Any, tuple[int, ...]]] = [("ab", ab, (batch, heads, q_len, kv_len))]
    if segment_ids is not None:
        shapes += [
            ("segment_ids.q", segment_ids.q, (batch, q_len)),
            ("segment_ids.kv", segment_ids.kv, (batch, kv_len)),
        ]
    for name, array, expected in shapes:
        if array is not None and tuple(array.shape) != expected:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, but this call needs {expected}; "
                "broadcast or reshape it"
            )


def _check_dtypes(q, k, v, ab, segment_ids) -> None:
    floats = [("q", q), ("k", k), ("v", v)] + ([] if ab is None else [("ab", ab)])
    for name, array in floats:
        if str(array.dtype) not in _FLOATS:
            raise TypeError(
                f"{name} has dtype {array.dtype}, but must be float32 or bfloat16; cast it"
            )
    for name, array in (("k", k), ("v", v)):
        if array.dtype != q.dtype:
            raise TypeError(
                f"{name} has dtype {array.dtype}, but q has dtype {q.dtype}; cast them to one dtype"
            )
    if segment_ids is None:
        return
    for half, ids in segment_ids._asdict().items():
        # jax would cut 64-bit ids to 32 bits, and different ids would become one.
        if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.dtype.itemsize > 4:
            raise TypeError(
                f"segment_ids.{half} has dtype {ids.dtype}, but must be an integer of at most "
                "32 bits; renumber the segments and cast to int32"
            )
    if segment_ids.q.dtype != segment_ids.kv.dtype:
        raise TypeError(
            f"segment_ids.q has dtype {segment_ids.q.dtype}, but segment_ids.kv has dtype "
            f"{segment_ids.kv.dtype}; cast them to one dtype"
        )


def _check_scale(sm_scale: Any) -> None:
    real = int | float | np.integer | np.floating
    if isinstance(sm_scale, bool) or not isinstance(sm_scale, real):
        raise TypeError(
            f"sm_scale={sm_scale!r} must be a Python or numpy real number, got "
            f"{type(sm_scale).__name__}; it is compiled into the kernel, so no array or tracer"
        )
    try:
        with np.errstate(over="ignore"):
            finite = math.isfinite(np.float32(float(sm_scale)))
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"sm_scale={sm_scale} must be finite as float32; choose a smaller scale")
