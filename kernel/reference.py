"""Attention in plain jax.numpy: a fallback for users where no kernel can run.

Same arguments and the same definition as `flash_attention`, without tiles. It holds the whole
matrix of logits in memory.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from kernel.checks import SegmentIds

DEFAULT_MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)


def mha_reference_no_custom_vjp(
    q,
    k,
    v,
    ab: jax.Array | None = None,
    segment_ids: SegmentIds | None = None,
    *,
    causal: bool = False,
    mask_value: float = DEFAULT_MASK_VALUE,
    sm_scale: float = 1.0,
    save_residuals: bool = False,
):
    """Attention that jax differentiates by itself, also twice and forward.

    Args:
      mask_value: not used: masks select, they add nothing. Kept for existing callers.
      save_residuals: return (o, l, m), l and m [batch, heads, q_len] float32.
      q, k, v, ab, segment_ids, causal, sm_scale: as for `flash_attention`.

    Returns:
      [batch, heads, q_len, head_dim] of q's dtype.
    """
    del mask_value
    s, visible = _logits(q, k, ab, segment_ids, causal, sm_scale)
    m = jnp.max(s, axis=-1, initial=-jnp.inf, where=visible)
    # Selected before exp, which overflows, and its derivative, where a hidden logit is far above m.
    p = jnp.exp(jnp.where(visible, s - m[..., None], -jnp.inf))
    l = p.sum(axis=-1)
    o = jnp.einsum("bhqk,bhkd->bhqd", p, v.astype(jnp.float32))
    o = (o / jnp.where(l == 0.0, 1.0, l)[..., None]).astype(q.dtype)
    return (o, l, m) if save_residuals else o


@functools.partial(jax.jit, static_argnames=("causal", "mask_value", "sm_scale"))
def mha_reference(
    q,
    k,
    v,
    ab,
    segment_ids: SegmentIds | None = None,
    causal: bool = False,
    mask_value: float = DEFAULT_MASK_VALUE,
    sm_scale: float = 1.0,
):
    """Attention whose gradient is `mha_reference_bwd`; arguments as there."""
    del mask_value
    return _mha_reference(q, k, v, ab, segment_ids, causal, sm_scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _mha_reference(q, k, v, ab, segment_ids, causal, sm_scale):
    return mha_reference_no_custom_vjp(q, k, v, ab, segment_ids, causal=causal, sm_scale=sm_scale)


def _mha_reference_forward(q, k, v, ab, segment_ids, causal, sm_scale):
    o, l, m = mha_reference_no_custom_vjp(
        q, k, v, ab, segment_ids, causal=causal, sm_scale=sm_scale, save_residuals=True
    )
    return o, (q, k, v, ab, segment_ids, o, l, m)


def _mha_reference_backward(causal, sm_scale, residuals, do):
    gradients = mha_reference_bwd(*residuals, do, causal=causal, sm_scale=sm_scale)
    return *gradients, None


_mha_reference.defvjp(_mha_reference_forward, _mha_reference_backward)


@functools.partial(jax.jit, static_argnames=("causal", "mask_value", "sm_scale"))
def mha_reference_bwd(
    q,
    k,
    v,
    ab,
    segment_ids: SegmentIds | None,
    o,
    l,
    m,
    do,
    causal: bool = False,
    mask_value: float = DEFAULT_MASK_VALUE,
    sm_scale: float = 1.0,
):
    """Gradients from what the forward pass saved.

    Args:
      o, l, m: as `mha_reference_no_custom_vjp` returns them with `save_residuals`.
      do: cotangent of o, like q.
      mask_value: not used: masks select, they add nothing. Kept for existing callers.
      q, k, v, ab, segment_ids, causal, sm_scale: as for `flash_attention`.

    Returns:
      (dq, dk, dv, dab), each like its primal; dab is None without a bias.
    """
    del mask_value
    q32, k32, v32, do32 = (x.astype(jnp.float32) for x in (q, k, v, do))
    s, visible = _logits(q, k, ab, segment_ids, causal, sm_scale)
    p = jnp.where(visible, jnp.exp(s - m[..., None]) / l[..., None], 0.0)
    dv = jnp.einsum("bhqk,bhqd->bhkd", p, do32)
    dp = jnp.einsum("bhqd,bhkd->bhqk", do32, v32)
    di = jnp.sum(o.astype(jnp.float32) * do32, axis=-1, keepdims=True)
    ds = jnp.where(visible, (dp - di) * p * np.float32(sm_scale), 0.0)
    dk = jnp.einsum("bhqk,bhqd->bhkd", ds, q32)
    dq = jnp.einsum("bhqk,bhkd->bhqd", ds, k32)
    dab = None if ab is None else ds.astype(ab.dtype)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), dab


def _logits(q, k, ab, segment_ids, causal, sm_scale) -> tuple[jax.Array, jax.Array]:
    """The logits and where they are visible, both [batch, heads, q_len, kv_len]."""
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    visible = jnp.ones(s.shape, bool)
    if segment_ids is not None:
        visible &= (segment_ids.q[:, :, None] == segment_ids.kv[:, None, :])[:, None]
    if causal:
        visible &= jnp.arange(s.shape[3])[None, :] <= jnp.arange(s.shape[2])[:, None]
    if ab is not None:
        visible &= ab != -jnp.inf
        s += jnp.where(visible, ab.astype(jnp.float32), 0.0)
    s *= np.float32(sm_scale)
    # A bias so low that the scale takes it to -inf hides its key, as -inf does.
    return s, visible & (s != -jnp.inf)
