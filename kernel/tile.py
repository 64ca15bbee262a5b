"""A tile of the logits, and which of its queries see which of its keys.

The forward kernel and both backward kernels compute their logits here, so that they cannot disagree
about a mask. Masks select: a hidden position gets the logit -inf whatever stands there, and every
later step tells a hidden position by that.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kernel.blocks import BlockSizes

HIDDEN = -np.inf
ALL = slice(None)
# For index maps: under jax_enable_x64 a Python 0 is a 64-bit integer, and a TPU has none.
ZERO = np.int32(0)
_CONFIG: Any = jax.config  # its options are not in its type


@dataclasses.dataclass(frozen=True)
class Call:
    """What is fixed about a call before it is traced.

    Attributes:
      q_len: how many queries there are; the last block of them may reach beyond.
      kv_len: how many keys there are.
      padded_kv_len: how many keys the kernels are given, whole blocks of them.
      causal: a query sees no key that stands after it, both counted from their first.
      sm_scale: what the logits are multiplied by, the bias included.
      blocks: of all three kernels, key blocks in whole lanes.
      debug: have the compiler print what it makes of the kernels.
    """

    q_len: int
    kv_len: int
    padded_kv_len: int
    causal: bool
    sm_scale: float
    blocks: BlockSizes
    debug: bool


class Inputs(NamedTuple):
    """The arrays of a call as the kernels take them; within a kernel, references to blocks of them.

    Attributes:
      q: [batch, heads, q_len, head_dim].
      k, v: [batch, heads, padded_kv_len, head_dim], finite in the padding.
      ab: [batch, heads, q_len, padded_kv_len], or None.
      q_ids: [batch, q_len, 1] int32, or None.
      kv_ids: [batch, 1, padded_kv_len] int32, or None.
    """

    q: Any
    k: Any
    v: Any
    ab: Any
    q_ids: Any
    kv_ids: Any

    def only_present(self, specs: Inputs) -> Inputs:
        """`specs` without those of arrays that are not there."""
        return Inputs(*(None if x is None else s for x, s in zip(self, specs, strict=True)))


def result(inputs: Inputs, shape: tuple[int, ...], dtype) -> jax.ShapeDtypeStruct:
    """What a kernel returns; under shard_map it varies over the mesh axes that q varies over."""
    varying = jax.typeof(inputs.q).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying)


def matmul(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Product of two matrices over one axis of each, accumulated in float32.

    bfloat16 products are exact whatever `jax.default_matmul_precision` says, and the compiler knows
    no other for them. float32 operands follow it; the compiler of jax 0.10 knows no precision
    between the lowest and the highest, so what lies between becomes the highest.
    """
    precision = None
    if a.dtype == jnp.bfloat16:
        precision = lax.Precision.DEFAULT
    elif _CONFIG.jax_default_matmul_precision in ("high", "tensorfloat32"):
        precision = lax.Precision.HIGHEST
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def logits(call: Call, refs: Inputs, queries, keys, *, first_query, first_key) -> jax.Array:
    """(q kᵀ + ab) · sm_scale where a query sees a key, -inf where it does not.

    Args:
      call: the call that the tile is a part of.
      refs: blocks of one head of one batch row.
      queries, keys: slices of the blocks, which make the tile.
      first_query, first_key: where in the sequences the tile begins.

    Returns:
      [queries, keys] float32.
    """
    s = matmul(refs.q[queries, :], refs.k[keys, :], (1, 1))
    visible = []
    if refs.ab is not None:
        ab = refs.ab[queries, keys].astype(jnp.float32)
        s += ab
        # Before the scale: a scale of 0 or below would turn -inf into something else.
        visible.append(ab != HIDDEN)
    if call.sm_scale != 1.0:
        s *= np.float32(call.sm_scale)
    if refs.q_ids is not None:
        visible.append(refs.q_ids[queries, :] == refs.kv_ids[:, keys])
    if call.causal:
        visible.append(positions(s.shape, 1, first_key) <= positions(s.shape, 0, first_query))
    if call.padded_kv_len != call.kv_len:
        visible.append(positions(s.shape, 1, first_key) < call.kv_len)
    for mask in visible:
        s = select(mask, s, HIDDEN)
    return s


def select(mask: jax.Array, x, otherwise) -> jax.Array:
    """`x` where `mask` holds, else `otherwise`; a column or a number stands for a whole tile.

    As jnp.where, which takes several times as long to trace, and kernels are full of it.
    """
    shape = np.broadcast_shapes(mask.shape, np.shape(x), np.shape(otherwise))
    dtype = jnp.result_type(x, otherwise)

    def whole(part, dtype):
        if np.ndim(part) == 0:
            return lax.full(shape, part, dtype)
        return part if part.shape == shape else lax.broadcast_in_dim(part, shape, (0, 1))

    return lax.select_n(whole(mask, bool), whole(otherwise, dtype), whole(x, dtype))


def row_max(s: jax.Array) -> jax.Array:
    """The largest number of each row, as a column."""
    return lax.expand_dims(lax.reduce_max(s, (1,)), (1,))


def row_sum(p: jax.Array) -> jax.Array:
    """The sum of each row, as a column."""
    return lax.expand_dims(lax.reduce_sum(p, (1,)), (1,))


def positions(shape: tuple[int, ...], axis: int, first) -> jax.Array:
    """Where in its sequence each element of a tile stands along one axis. int32."""
    return first + lax.broadcasted_iota(jnp.int32, shape, axis)


def last_key_block(query_block, block_q: int, block_k: int):
    """Under causal order, the last block of keys that a block of queries sees any of."""
    return lax.div((query_block + 1) * block_q - 1, np.int32(block_k))


def first_query_block(key_block, block_q: int, block_k: int):
    """Under causal order, the first block of queries that sees any of a block of keys."""
    return lax.div(key_block * block_k, np.int32(block_q))
