"""`splash_attention` of jax's experimental Pallas kernels, one call per batch row.

    python -m pytest properties --target properties.adapters.splash:adapter

It has no bias and no scale. The scale goes into the queries, which is exact only for powers of two:
other calls are refused, and counted as refused. It has blocks, but fewer: those it lacks are
ignored. For the backward it saves one log-sum-exp a row.
"""

import math
from types import SimpleNamespace

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks


def attend(q, k, v, ab, segment_ids, *, causal, sm_scale, block_sizes, debug=False, **options):
    (_, n_heads, q_len, _), (_, _, kv_len, _) = q.shape, k.shape
    if abs(math.frexp(sm_scale)[0]) not in (0.0, 0.5):
        raise NotImplementedError(f"sm_scale={sm_scale} would round the queries")
    if b := block_sizes:
        dkv = b.block_q_major_dkv, b.block_k_major_dkv, b.block_k_dkv
        sizes = b.block_q, b.block_k_major, b.block_k, *dkv, b.block_q_dq, b.block_k_major_dq
        options["block_sizes"] = splash.BlockSizes(*sizes)
    mask = (masks.CausalMask if causal else masks.FullMask)((q_len, kv_len))
    heads = masks.MultiHeadMask([mask] * n_heads)
    kernel = splash.make_splash_mha_single_device(heads, **options)
    return jax.vmap(kernel)((q * sm_scale).astype(q.dtype), k, v, segment_ids)


def residuals(*arrays, **options):
    o, (lse,) = attend(*arrays, **options, save_residuals=True)
    return o, lse


features = frozenset({"causal", "segments", "block_sizes", "gradients"})
adapter = SimpleNamespace(call=attend, residuals=residuals, features=features)
adapter.arithmetic, adapter.SegmentIds = {"saves_lse": True}, splash.SegmentIds
