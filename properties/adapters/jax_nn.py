"""`jax.nn.dot_product_attention`, its XLA implementation.

    python -m pytest properties --target properties.adapters.jax_nn:adapter

It adds a bias to scaled logits, so that the bias goes in scaled. That rounds alike only for powers
of two: with a bias other scales are refused, and counted so. Segments go in as a mask. Not claimed
is bfloat16, where its derivative rounds dp as well as p and ds.
"""

import functools
import math

import jax
import jax.numpy as jnp

from properties.judging.targets import FEATURES


class Adapter:
    dtypes = ("float32",)
    features = FEATURES - {"block_sizes"}

    @staticmethod
    def call(q, k, v, ab=None, segment_ids=None, *, causal, sm_scale, block_sizes, debug):
        mask = None
        if segment_ids is not None:
            mask = segment_ids.q[:, None, :, None] == segment_ids.kv[:, None, None, :]
        if ab is not None:
            if abs(math.frexp(sm_scale)[0]) not in (0.0, 0.5):
                raise NotImplementedError(f"sm_scale={sm_scale} would round the bias")
            seen = ~jnp.isneginf(ab)  # 0 times -inf would hide nothing
            mask = seen if mask is None else mask & seen
            ab = jnp.where(seen, ab, jnp.zeros_like(ab)).astype(jnp.float32) * sm_scale
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        attend = functools.partial(jax.nn.dot_product_attention, implementation="xla")
        return attend(q, k, v, ab, mask, scale=sm_scale, is_causal=causal).swapaxes(1, 2)


adapter = Adapter()
