"""The engines against each other on jax's own attention kernels, forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import paged_attention as paged
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from properties import engines


def draw(*shape, dtype=np.float32):
    random = np.random.default_rng(sum(shape))
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def assert_close(program, *args, mode="interpret"):
    """Agreement within rounding, relative to each output's largest element.

    float32: the engines sum n terms in different orders, which moves a sum by n roundings at most.
    bfloat16: such a difference may tip the rounding of p or ds, and then that of the output: two
    roundings of 2^-8 each.
    """
    ours = jax.tree.leaves(program.run("numpy", *args))
    theirs = jax.tree.leaves(program.run(mode, *args))
    narrow = any(result.dtype == jnp.bfloat16 for result in ours)
    for got, expected in zip(ours, theirs, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        allowed = 2 * 2.0**-8 if narrow else max(expected.shape[-2:]) * 2.0**-24
        assert np.abs(got - expected).max() <= allowed * np.abs(expected).max()


def blocks(minor):
    return flash.BlockSizes(
        block_q=128,
        block_k_major=256,
        block_k=minor,
        block_b=1,
        block_q_major_dkv=128,
        block_k_major_dkv=256,
        block_k_dkv=minor,
        block_q_dkv=128,
        block_k_major_dq=256,
        block_k_dq=minor,
        block_q_dq=128,
    )


@pytest.mark.parametrize(
    ("dtype", "causal", "bias", "segments", "minor"),
    [
        (np.float32, True, True, True, 128),
        (np.float32, False, False, False, 256),
        (jnp.bfloat16, True, False, True, 128),
        (jnp.bfloat16, False, True, False, 256),
    ],
)
def test_flash_attention(dtype, causal, bias, segments, minor):
    q, k, v = (draw(2, 1, 256, 64, dtype=dtype) * dtype(n) for n in (1, 0.5, 2))
    ab = draw(2, 1, 256, 256) if bias else None
    ids = jnp.repeat(jnp.array([[0, 1], [2, 2]], jnp.int32), 128, axis=1) if segments else None

    def function(q, k, v, ab, do):
        def attention(q, k, v, ab):
            segment_ids = None if ids is None else flash.SegmentIds(ids, ids)
            return flash.flash_attention(
                q, k, v, ab, segment_ids, causal=causal, sm_scale=0.125, block_sizes=blocks(minor)
            )

        o, vjp = jax.vjp(attention, q, k, v, ab)
        return o, vjp(do)

    args = (q, k, v, ab, draw(2, 1, 256, 64, dtype=dtype))
    assert_close(engines.trace(function, *args), *args)


@pytest.mark.parametrize("fused", [True, False])
def test_splash_attention(fused):
    sizes: dict[str, Any] = {"block_q": 128, "block_kv": 256, "block_kv_compute": 128}
    sizes |= {"block_q_dkv": 128, "block_kv_dkv": 256, "block_kv_dkv_compute": 128}
    sizes |= {} if fused else {"block_q_dq": 128, "block_kv_dq": 128}
    mask = masks.MultiHeadMask(
        [masks.CausalMask((256, 256)), masks.LocalMask((256, 256), (64, 64), 0)]
    )
    kernel = splash.make_splash_mha(
        mask,
        block_sizes=splash.BlockSizes(**sizes, use_fused_bwd_kernel=fused),
        head_shards=1,
        q_seq_shards=1,
    )
    ids = jnp.repeat(jnp.array([3, 4], jnp.int32), 128)

    def function(q, k, v, do):
        o, vjp = jax.vjp(lambda *qkv: kernel(*qkv, splash.SegmentIds(ids, ids)), q, k, v)
        return o, vjp(do)

    args = [draw(2, 256, 128) * np.float32(n) for n in (0.1, 0.5, 1, 2)]
    assert_close(engines.trace(function, *args), *args)


def test_paged_attention_with_its_copies():
    lengths = np.array([30, 100], np.int32)
    pages = np.random.default_rng(0).permutation(16).reshape(2, 8).astype(np.int32)
    args = (draw(2, 8, 128), draw(2, 16, 16, 128), draw(2, 16, 16, 128), lengths, pages)
    program = engines.trace(
        lambda *args: paged.paged_attention(*args, pages_per_compute_block=4), *args
    )
    assert_close(program, *args, mode="tpu-interpret")
