"""A tile of the logits, and which of its queries see which of its keys.

The forward kernel and the backward one compute their logits here, so that they cannot disagree
about a mask. Masks select: a hidden position gets the logit -inf whatever stands there, and every
later step tells a hidden position by that.

**Tiles are transposed**: keys lie along the first axis (sublanes), queries along the second
(lanes). What is known of each query, its maximum, its sum, is then one row of numbers: a register
holds it for 1024 queries, where a column would fill one for 8, and a maximum over keys runs over
registers and not across lanes. And the products that follow, vᵀ p and kᵀ ds, have as many columns
as the tile has queries, not head_dim: a 256 wide matrix unit is full.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kernel.blocks import BlockSizes
from kernel.steps import Grid, Part

HIDDEN = -np.inf
# For index maps: under jax_enable_x64 a Python 0 is a 64-bit integer, and a TPU has none.
ZERO = np.int32(0)
_SMALLEST_NORMAL = float(np.finfo(np.float32).smallest_normal)
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
      blocks: of both kernels, key blocks in whole lanes.
      query_tiles: queries of a forward and of a backward tile; the last of a block may have less.
      vmem_bytes: what a kernel may take of on-chip memory; None for what the compiler grants.
      debug: have the compiler print what it makes of the kernels.
    """

    q_len: int
    kv_len: int
    padded_kv_len: int
    causal: bool
    sm_scale: float
    blocks: BlockSizes
    query_tiles: tuple[int, int]
    vmem_bytes: int | None
    debug: bool

    @property
    def scales_exponent(self) -> bool:
        """Whether sm_scale waits for the exponent, where it costs nothing, or logits are scaled.

        The exponent is (s - m) · sm_scale · log2(e), and the last two are one constant. That needs
        a scale above 0, for the order of the logits to be theirs, and one that is no subnormal: a
        TPU takes that for 0, and -inf times 0 is nan. And not above 1, because a bias so low that
        scaling takes it to -inf hides its key.
        """
        return _SMALLEST_NORMAL <= self.sm_scale <= 1.0

    @property
    def base_2_rate(self) -> np.float32:
        """What turns a difference of logits into an exponent of 2."""
        return np.float32(math.log2(math.e) * (self.sm_scale if self.scales_exponent else 1.0))


class Inputs(NamedTuple):
    """The arrays of a call as the kernels take them; within a kernel, references to blocks of them.

    Attributes:
      q: [batch, heads, q_len, head_dim].
      k, v: [batch, heads, padded_kv_len, head_dim], finite in the padding.
      ab: [batch, heads, q_len, kv_len], or None; the last block of it may reach beyond.
      q_ids: [batch, 1, q_len] int32, or None; a kernel takes them in blocks, as `rows.py` says.
      kv_ids: [batch, kv_len, 1] int32, or None; the last block of them may reach beyond.
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
        if b.shape[1 - contract[1]] == 1:
            # The compiler makes multiplications of a product with a vector, and bfloat16 has none.
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    elif _CONFIG.jax_default_matmul_precision in ("high", "tensorfloat32"):
        precision = lax.Precision.HIGHEST
    return lax.dot_general(
        a,
        b,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def over_all_keys(refs: Inputs, x: jax.Array, y: jax.Array) -> jax.Array:
    """xᵀ y, for the keys or values x of a tile and a tile y."""
    if refs.ab is not None and x.dtype == jnp.bfloat16:
        # The compiler for v5e gives up where it transposes bfloat16 beside the float32 of the bias
        # ("Found no uses of XposeSequence", libtpu 0.0.42 to 0.0.52).
        return matmul(transposed(x.astype(jnp.float32)).astype(x.dtype), y, (1, 0))
    return matmul(x, y, (0, 0))


def logits(call: Call, grid: Grid, refs: Inputs, q: jax.Array, part: Part, key_block) -> jax.Array:
    """(k qᵀ + abᵀ) · sm_scale where a query sees a key, -inf where it does not.

    Not scaled where `call.scales_exponent`.

    Args:
      call, grid: the call that the tile is a part of, and how it is cut.
      refs: blocks of one head of one batch row.
      q: the queries of the tile.
      part: which part of the blocks the tile is.
      key_block: which block of keys it is in.

    Returns:
      [keys, queries] float32.
    """
    queries, keys = part.queries, part.keys
    s = matmul(refs.k[keys, :], q, (1, 1))
    visible = []
    if refs.ab is not None:
        ab = lax.transpose(refs.ab[queries, keys].astype(jnp.float32), (1, 0))
        s += ab
        # Before the scale: a scale of 0 or below would turn -inf into something else.
        visible.append(ab != HIDDEN)
    if not call.scales_exponent:
        s *= np.float32(call.sm_scale)
    if refs.q_ids is not None:
        visible.append(refs.kv_ids[keys, :] == refs.q_ids[:, queries])
    if part.diagonal is not None:
        visible.append(_count(s, 0) <= _count(s, 1) + part.diagonal)
    if lacks_keys(call, grid, part):
        visible.append(_count(s, 0) < call.kv_len - keys.start - key_block * grid.block_k)
    for mask in visible:
        s = select(mask, s, HIDDEN)
    return s


def lacks_keys(call: Call, grid: Grid, part: Part) -> bool:
    """Whether a part of some block has keys that are not there and that causal order leaves in."""
    if call.causal and call.q_len <= call.kv_len:
        return False
    return (grid.key_blocks - 1) * grid.block_k + part.keys.stop > call.kv_len


def is_masked(call: Call, grid: Grid, refs: Inputs, part: Part) -> bool:
    """Whether some position of a part may be hidden."""
    if refs.ab is not None or refs.q_ids is not None or part.diagonal is not None:
        return True
    return lacks_keys(call, grid, part)


def select(mask: jax.Array, x, otherwise) -> jax.Array:
    """`x` where `mask` holds, else `otherwise`; a row or a number stands for a whole tile.

    As jnp.where, which takes several times as long to trace, and kernels are full of it.
    """
    shape = np.broadcast_shapes(mask.shape, np.shape(x), np.shape(otherwise))
    dtype = jnp.result_type(x, otherwise)

    def whole(part, dtype):
        if np.ndim(part) == 0:
            return lax.full(shape, part, dtype)
        return part if part.shape == shape else lax.broadcast_in_dim(part, shape, (0, 1))

    return lax.select_n(whole(mask, bool), whole(otherwise, dtype), whole(x, dtype))


def over_keys(reduce, s: jax.Array) -> jax.Array:
    """The maximum or sum over the keys of a tile, as a row."""
    return lax.expand_dims(reduce(s, (0,)), (0,))


def transposed(x: jax.Array) -> jax.Array:
    """A matrix on its side."""
    return lax.transpose(x, (1, 0))


def _count(s: jax.Array, axis: int) -> jax.Array:
    return lax.broadcasted_iota(jnp.int32, s.shape, axis)
