"""The public call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from kernel import chip
from kernel.blocks import BlockSizes, round_up
from kernel.checks import SegmentIds, check_call
from kernel.defaults import choose_blocks, query_tile
from kernel.differentiation import attend, attend_with_residuals
from kernel.tile import Call, Inputs


def flash_attention(
    q,
    k,
    v,
    ab=None,
    segment_ids: SegmentIds | None = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
    block_sizes: BlockSizes | None = None,
    debug: bool = False,
) -> jax.Array:
    """softmax((q kᵀ + ab) · sm_scale) v over the keys that each query sees, on a TPU.

    **The bias goes in before the scale**: `ab` is multiplied by `sm_scale` too. And `sm_scale` is 1
    unless given: pass `head_dim ** -0.5` for the usual attention.

    A query i sees a key j where their segment ids are equal, j <= i if `causal` (counted from the
    first of each, also where the lengths differ), and ab[i, j] is not -inf. A query that sees no
    key gets 0 and takes no part in any gradient. Nothing that stands at a hidden position changes a
    visible row, except nan or inf in k or v, which are the caller's fault wherever they stand: a
    matrix product makes nan of 0 times inf.

    Differentiable once, in reverse, with respect to q, k, v and ab; gradients have the dtype of
    their primal.

    Args:
      q: [batch, heads, q_len, head_dim], float32 or bfloat16.
      k, v: [batch, heads, kv_len, head_dim], of q's dtype.
      ab: bias, [batch, heads, q_len, kv_len], float32 or bfloat16 whatever q's dtype, or None.
      segment_ids: a `SegmentIds` of q [batch, q_len] and kv [batch, kv_len], or None.
      causal: whether a query sees no later key.
      sm_scale: a real number, finite as float32; compiled into the kernel.
      block_sizes: tile sizes, or None for sizes that fit any shape.
      debug: have the compiler print what it makes of the kernels.

    Returns:
      [batch, heads, q_len, head_dim], of q's dtype.

    Raises:
      TypeError, ValueError, NotImplementedError: an argument breaks a rule; nothing was traced.
    """
    check_call(q, k, v, ab, segment_ids, causal, sm_scale, block_sizes, debug)
    call = _settle(q, k, ab, causal, sm_scale, block_sizes, debug)
    return attend(call, _as_kernels_take_them(call, q, k, v, ab, segment_ids))


def attention_residuals(
    q,
    k,
    v,
    ab=None,
    segment_ids: SegmentIds | None = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
    block_sizes: BlockSizes | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the forward kernel saves for the backward ones, for tests of the kernels.

    Takes the arguments of `flash_attention`.

    Returns:
      (o, l, m): the output; the sum of exp(logit - m) and the largest logit of each row,
      [batch, heads, q_len] float32. A row that sees no key has l = 0 and m = -inf.
    """
    check_call(q, k, v, ab, segment_ids, causal, sm_scale, block_sizes, False)
    call = _settle(q, k, ab, causal, sm_scale, block_sizes, False)
    inputs = _as_kernels_take_them(call, q, k, v, ab, segment_ids)
    o, statistics = attend_with_residuals(call, inputs)
    m, l = statistics[:, :, 0], statistics[:, :, 1]
    if call.scales_exponent and call.sm_scale != 1.0:
        m *= np.float32(call.sm_scale)
    return o, l, jnp.where(l == 0.0, np.float32(-np.inf), m)


def _settle(q, k, ab, causal, sm_scale, block_sizes, debug) -> Call:
    """What is fixed about a call, with blocks in whole lanes."""
    _, _, q_len, head_dim = q.shape
    kv_len = k.shape[2]
    vmem_bytes = chip.vmem_for_a_kernel()
    if block_sizes is None:
        blocks = choose_blocks(
            *(q_len, kv_len, head_dim, q.dtype.itemsize),
            bias=ab is not None,
            vmem_bytes=vmem_bytes,
        )
        backward_tile = query_tile(blocks.block_q_major_dkv or 0)
    else:
        blocks = block_sizes.padded_to_lanes()
        backward_tile = blocks.query_tile_dkv
    return Call(
        q_len=q_len,
        kv_len=kv_len,
        padded_kv_len=round_up(kv_len, blocks.block_k_major),
        causal=bool(causal),
        sm_scale=float(sm_scale),
        blocks=blocks,
        query_tiles=(query_tile(blocks.block_q), backward_tile or 0),
        vmem_bytes=vmem_bytes,
        debug=bool(debug),
    )


def _as_kernels_take_them(call: Call, q, k, v, ab, segment_ids) -> Inputs:
    """The call's arrays, keys and values padded to whole blocks; the tail is masked by position.

    Of bias and ids a block may reach beyond the array: what stands there is selected away, while in
    a product with weights of 0 it could be nan.
    """
    missing = call.padded_kv_len - call.kv_len
    if missing:
        k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0))) for x in (k, v))
    q_ids = kv_ids = None
    if segment_ids is not None:
        # This keeps the low 32 bits of any integer: ids are equal exactly where they were.
        q_ids, kv_ids = (ids.astype(jnp.int32) for ids in segment_ids)
        q_ids, kv_ids = q_ids[:, None, :], kv_ids[:, :, None]
    return Inputs(q=q, k=k, v=v, ab=ab, q_ids=q_ids, kv_ids=kv_ids)
