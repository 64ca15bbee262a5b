"""`splash_attention` of jax's experimental Pallas kernels, one call per batch row.

    python -m pytest properties --target properties.adapters.splash:adapter

It has no bias and no scale. The scale goes into the queries, which bfloat16 takes exactly only for
powers of two: other calls are refused, and counted as refused.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks


class Adapter:
    features = frozenset({"causal", "segments", "gradients"})
    masked_rows = "any"
    SegmentIds = splash.SegmentIds

    @staticmethod
    def call(q, k, v, ab=None, segment_ids=None, *, causal, sm_scale, block_sizes, debug):
        if q.dtype == jnp.bfloat16 and abs(math.frexp(sm_scale)[0]) not in (0.0, 0.5):
            raise NotImplementedError(f"sm_scale={sm_scale} would round bfloat16 queries")
        lengths = q.shape[2], k.shape[2]
        mask = (masks.CausalMask if causal else masks.FullMask)(lengths)
        attend = splash.make_splash_mha_single_device(masks.MultiHeadMask([mask] * q.shape[1]))
        return jax.vmap(attend)((q * sm_scale).astype(q.dtype), k, v, segment_ids)


adapter = Adapter()
