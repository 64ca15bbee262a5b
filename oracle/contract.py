"""Which calls of a flash-attention kernel are refused, with which exception and in which words.

Every call is either accepted and right, or refused before anything is traced. `call_refusal` and
`block_sizes_refusal` decide which, for any argument a caller can think of, and never raise. A call
that breaks several rules is refused by the first in this order: construction of the block sizes,
types, ranks, shapes, dtypes, scalars, blocks against lengths.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from oracle.rounding import FLOAT32

RULES: dict[str, str] = {
    "block_type": "a block size is an integer, bool excluded",
    "block_positive": "a block size is at least 1",
    "minor_exceeds": "a minor block does not exceed its major block",
    "minor_divides": "a minor block divides its major block",
    "backward_partial": "backward block sizes are given all or none",
    "block_sizes_type": "block_sizes is None or a BlockSizes",
    "array_type": "q, k, v and ab are arrays, with a shape and a dtype",
    "segments_type": "segment_ids is a SegmentIds whose halves q and kv are both arrays",
    "rank": "q, k and v have 4 dimensions: batch, heads, length, head_dim",
    "batch_mismatch": "k and v have q's batch",
    "heads_mismatch": "k and v have q's heads",
    "head_dim_mismatch": "k has q's head_dim",
    "kv_len_mismatch": "v has k's length",
    "v_head_dim": "v has q's head_dim; another one is not supported",
    "empty": "no dimension of q, k or v is 0",
    "bias_shape": "ab has shape (batch, heads, q_len, kv_len)",
    "segments_shape": "segment_ids.q has shape (batch, q_len), segment_ids.kv (batch, kv_len)",
    "qkv_dtype": "q, k and v are float32 or bfloat16",
    "qkv_mixed": "q, k and v have the same dtype",
    "bias_dtype": "ab is float32 or bfloat16",
    "segments_dtype": "segment ids are integers of at most 32 bits, bool excluded",
    "segments_mixed": "both halves of segment_ids have the same dtype",
    "scale_type": "sm_scale is a Python or NumPy real scalar, bool excluded",
    "scale_value": "sm_scale is finite as a float32",
    "flag_type": "causal and debug are bool",
    "backward_missing": "a differentiated call has backward block sizes, or block_sizes=None",
    "q_block_align": "a block over q's length is a multiple of 8 or equal to q_len",
    "q_block_exceeds": "a block over q's length does not exceed q_len",
    "k_block_align": "a minor block over kv's length is a multiple of 128 or equal to kv_len",
    "k_major_exceeds": "a major block over kv's length does not exceed kv_len",
    "k_major_divides": "a major block over kv's length divides kv_len",
    "block_b_exceeds": "block_b does not exceed the batch",
    "second_order": "second derivatives are not supported (of a transformation, not of arguments)",
    "forward_mode": "forward-mode derivatives are refused (of a transformation, not of arguments)",
}

FORWARD_BLOCKS = ("block_q", "block_k_major", "block_k", "block_b")
BACKWARD_BLOCKS = (
    "block_q_major_dkv",
    "block_k_major_dkv",
    "block_k_dkv",
    "block_q_dkv",
    "block_k_major_dq",
    "block_k_dq",
    "block_q_dq",
)
MINOR_OF = {
    "block_k": "block_k_major",
    "block_q_dkv": "block_q_major_dkv",
    "block_k_dkv": "block_k_major_dkv",
    "block_k_dq": "block_k_major_dq",
}
Q_BLOCKS = ("block_q", "block_q_major_dkv", "block_q_dq")
K_MAJOR_BLOCKS = ("block_k_major", "block_k_major_dkv", "block_k_major_dq")
K_MINOR_BLOCKS = ("block_k", "block_k_dkv", "block_k_dq")

_FLOATS = ("float32", "bfloat16")
_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The exception a call must raise; its message holds every one of `words`."""

    rule: str
    exception: type[Exception]
    words: tuple[str, ...]


def _shown(value: object, how: Callable[[object], str] = str) -> str:
    """`value` as a message shows it; nothing where Python declines to print so long an integer."""
    try:
        return how(value)
    except ValueError:
        return ""


def _refuse(rule: str, exception: type[Exception], *words: object) -> Refusal:
    return Refusal(rule, exception, tuple(_shown(word) for word in words))


def block_sizes_refusal(fields: Mapping[str, object]) -> Refusal | None:
    """How the construction `BlockSizes(**fields)` must fail, or None.

    A field that BlockSizes does not have, or a forward one left out, fails like a wrong type:
    TypeError with its name.
    """
    for name in fields:
        if name not in FORWARD_BLOCKS and name not in BACKWARD_BLOCKS:
            return _refuse("block_type", TypeError, name)
    blocks: dict[str, int] = {}
    for name in FORWARD_BLOCKS + BACKWARD_BLOCKS:
        if name not in fields and name in FORWARD_BLOCKS:
            return _refuse("block_type", TypeError, name)
        value = fields.get(name)
        if value is None and name in BACKWARD_BLOCKS:
            continue
        block = _as_integer(value)
        if block is None:
            return _refuse("block_type", TypeError, name, _shown(value, repr))
        blocks[name] = block
    for name, block in blocks.items():
        if block < 1:
            return _refuse("block_positive", ValueError, name, block)
    missing = [name for name in BACKWARD_BLOCKS if name not in blocks]
    if 0 < len(missing) < len(BACKWARD_BLOCKS):
        return _refuse("backward_partial", ValueError, *missing)
    for minor, major in MINOR_OF.items():
        if minor not in blocks:
            continue
        values = blocks[minor], blocks[major]
        if blocks[minor] > blocks[major]:
            return _refuse("minor_exceeds", ValueError, minor, major, "must not exceed", *values)
        if blocks[major] % blocks[minor]:
            return _refuse("minor_divides", ValueError, minor, major, "must divide", *values)
    return None


def call_refusal(
    q: Any,
    k: Any,
    v: Any,
    ab: Any = None,
    segment_ids: Any = None,
    *,
    causal: Any = False,
    sm_scale: Any = 1.0,
    block_sizes: Any = None,
    debug: Any = False,
    differentiated: bool = False,
) -> Refusal | None:
    """How the call must be refused, or None if it must be accepted.

    Arrays are anything with a shape and a dtype. block_sizes: None, or an object with the fields of
    BlockSizes as attributes. differentiated: whether a gradient of the call is taken.
    """
    return next(
        _refusals(
            q,
            k,
            v,
            ab,
            segment_ids,
            flags={"causal": causal, "debug": debug},
            sm_scale=sm_scale,
            block_sizes=block_sizes,
            differentiated=differentiated,
        ),
        None,
    )


def _refusals(
    q: Any,
    k: Any,
    v: Any,
    ab: Any,
    segment_ids: Any,
    *,
    flags: Mapping[str, Any],
    sm_scale: Any,
    block_sizes: Any,
    differentiated: bool,
) -> Iterator[Refusal]:
    """Broken rules in order of precedence; after the first they may follow from one another."""
    blocks: dict[str, int] = {}
    if block_sizes is not None:
        fields: dict[str, Any] = {
            name: getattr(block_sizes, name, _ABSENT) for name in FORWARD_BLOCKS + BACKWARD_BLOCKS
        }
        if any(value is _ABSENT for value in fields.values()):
            yield _refuse("block_sizes_type", TypeError, "block_sizes")
            return
        broken = block_sizes_refusal(fields)
        if broken is not None:
            yield broken
            return
        blocks = {
            name: operator.index(value) for name, value in fields.items() if value is not None
        }
    arrays = {"q": q, "k": k, "v": v}
    optional = arrays if ab is None else {**arrays, "ab": ab}
    for name, array in optional.items():
        if _shape(array) is None:
            yield _refuse("array_type", TypeError, name)
            return
    if segment_ids is not None and not _is_segment_ids(segment_ids):
        yield _refuse("segments_type", TypeError, "segment_ids")
        return
    shapes = {name: array.shape for name, array in arrays.items()}
    for name, shape in shapes.items():
        if len(shape) != 4:
            yield _refuse("rank", ValueError, name, shape)
            return
    yield from _shape_refusals(shapes, ab, segment_ids)
    yield from _dtype_refusals(arrays, ab, segment_ids)
    yield from _scalar_refusals(sm_scale, flags)
    batch, _, q_len, _ = shapes["q"]
    if blocks:
        yield from _block_refusals(blocks, batch, q_len, shapes["k"][2], differentiated)


def _shape_refusals(
    shapes: Mapping[str, tuple[int, ...]], ab: Any, segment_ids: Any
) -> Iterator[Refusal]:
    batch, heads, q_len, head_dim = shapes["q"]
    kv_len = shapes["k"][2]
    for axis, rule in ((0, "batch_mismatch"), (1, "heads_mismatch")):
        for name in ("k", "v"):
            if shapes[name][axis] != shapes["q"][axis]:
                yield _refuse(rule, ValueError, name, shapes[name][axis], shapes["q"][axis])
    if shapes["k"][3] != head_dim:
        yield _refuse("head_dim_mismatch", ValueError, "k", shapes["k"][3], head_dim)
    if shapes["v"][2] != kv_len:
        yield _refuse("kv_len_mismatch", ValueError, "v", shapes["v"][2], kv_len)
    if shapes["v"][3] != head_dim:
        yield _refuse("v_head_dim", NotImplementedError, "v", shapes["v"][3], head_dim)
    for name, shape in shapes.items():
        if 0 in shape:
            yield _refuse("empty", ValueError, name, shape)
    logits_shape = (batch, heads, q_len, kv_len)
    if ab is not None and ab.shape != logits_shape:
        yield _refuse("bias_shape", ValueError, "ab", ab.shape, logits_shape)
    if segment_ids is not None:
        for half, array, expected in (
            ("segment_ids.q", segment_ids.q, (batch, q_len)),
            ("segment_ids.kv", segment_ids.kv, (batch, kv_len)),
        ):
            if array.shape != expected:
                yield _refuse("segments_shape", ValueError, half, array.shape, expected)


def _dtype_refusals(arrays: Mapping[str, Any], ab: Any, segment_ids: Any) -> Iterator[Refusal]:
    dtypes = {name: _dtype_name(array) for name, array in arrays.items()}
    for name, dtype in dtypes.items():
        if dtype not in _FLOATS:
            yield _refuse("qkv_dtype", TypeError, name, dtype)
    if len(set(dtypes.values())) > 1:
        yield _refuse("qkv_mixed", TypeError, *sorted(set(dtypes.values())))
    if ab is not None and _dtype_name(ab) not in _FLOATS:
        yield _refuse("bias_dtype", TypeError, "ab", _dtype_name(ab))
    if segment_ids is not None:
        of_query, of_key = _dtype_name(segment_ids.q), _dtype_name(segment_ids.kv)
        for half, dtype in (("segment_ids.q", of_query), ("segment_ids.kv", of_key)):
            bits = re.fullmatch(r"u?int(\d+)", dtype)
            if bits is None or int(bits[1]) > 32:
                yield _refuse("segments_dtype", TypeError, half, dtype)
        if of_query != of_key:
            yield _refuse("segments_mixed", TypeError, of_query, of_key)


def _scalar_refusals(sm_scale: Any, flags: Mapping[str, Any]) -> Iterator[Refusal]:
    real = isinstance(sm_scale, (int, float, np.integer, np.floating))
    if not real or isinstance(sm_scale, bool):
        yield _refuse("scale_type", TypeError, "sm_scale")
    elif not _finite_as_float32(sm_scale):
        yield _refuse("scale_value", ValueError, "sm_scale", sm_scale)
    for name, flag in flags.items():
        if not isinstance(flag, (bool, np.bool_)):
            yield _refuse("flag_type", TypeError, name, _shown(flag, repr))


def _block_refusals(
    blocks: Mapping[str, int], batch: int, q_len: int, kv_len: int, differentiated: bool
) -> Iterator[Refusal]:
    if differentiated:
        missing = [name for name in BACKWARD_BLOCKS if name not in blocks]
        if missing:
            yield _refuse("backward_missing", ValueError, *missing)
    for name, block in blocks.items():
        if name in Q_BLOCKS:
            if block % 8 and block != q_len:
                yield _refuse("q_block_align", ValueError, name, block, "multiple of 8")
            if block > q_len:
                yield _refuse("q_block_exceeds", ValueError, name, block, "q_len", q_len)
        if name in K_MINOR_BLOCKS and block % 128 and block != kv_len:
            yield _refuse("k_block_align", ValueError, name, block, "multiple of 128")
        if name in K_MAJOR_BLOCKS:
            if block > kv_len:
                yield _refuse("k_major_exceeds", ValueError, name, block, "kv_len", kv_len)
            elif kv_len % block:
                yield _refuse("k_major_divides", ValueError, name, block, "must divide", kv_len)
    if blocks["block_b"] > batch:
        yield _refuse("block_b_exceeds", ValueError, "block_b", blocks["block_b"], batch)


def _as_integer(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _shape(array: Any) -> tuple[int, ...] | None:
    """The shape of anything that has one and a dtype, else None."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple) or not all(isinstance(size, int) for size in shape):
        return None
    return shape if getattr(array, "dtype", None) is not None else None


def _dtype_name(array: Any) -> str:
    """The name of an array's dtype, be it given as a dtype, a scalar type or a string."""
    name = getattr(array.dtype, "name", None) or getattr(array.dtype, "__name__", array.dtype)
    return str(name)


def _is_segment_ids(segment_ids: Any) -> bool:
    """A namedtuple with fields q and kv that are both arrays: the types of targets differ."""
    if not isinstance(segment_ids, tuple) or not hasattr(segment_ids, "_fields"):
        return False
    halves = (getattr(segment_ids, "q", None), getattr(segment_ids, "kv", None))
    return all(_shape(half) is not None for half in halves)


def _finite_as_float32(number: Any) -> bool:
    try:
        return abs(float(number)) < FLOAT32.overflow
    except OverflowError:  # an integer beyond float64
        return False
