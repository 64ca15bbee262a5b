"""`jax.nn.dot_product_attention`, its XLA implementation.

    python -m pytest properties --target properties.adapters.jax_nn:adapter

It adds the bias to logits that are scaled already, so the bias goes in scaled; segments go in as a
mask. Claimed is float32: in bfloat16 its derivative rounds dp as well as p and ds, for which no
bound is declared here.
"""

import jax
import jax.numpy as jnp

from properties.judging.targets import FEATURES


class Adapter:
    dtypes = ("float32",)
    features = FEATURES - {"block_sizes"}
    masked_rows = "any"

    @staticmethod
    def call(q, k, v, ab=None, segment_ids=None, *, causal, sm_scale, block_sizes, debug):
        mask = None
        if segment_ids is not None:
            mask = segment_ids.q[:, None, :, None] == segment_ids.kv[:, None, None, :]
        if ab is not None:
            # Before the scale: 0 times -inf hides nothing.
            seen = ab != -jnp.inf
            mask = seen if mask is None else mask & seen
            ab = jnp.where(seen, ab.astype(jnp.float32) * sm_scale, 0.0)
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        o = jax.nn.dot_product_attention(
            q, k, v, bias=ab, mask=mask, scale=sm_scale, is_causal=causal, implementation="xla"
        )
        return o.swapaxes(1, 2)


adapter = Adapter()
