"""The kernel against plain jax.numpy, under jax's transformations, and what it refuses.

The property suite holds it against the oracle; here are the parts that need no oracle.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import kernel

SCALE = 0.3


@pytest.fixture(autouse=True)
def simulated_tpu():
    with pltpu.force_tpu_interpret_mode():
        yield


def _arrays(batch=2, heads=1, q_len=16, kv_len=24, head_dim=8):
    rng = np.random.default_rng(0)
    shapes = [(q_len, head_dim), (kv_len, head_dim), (kv_len, head_dim), (q_len, kv_len)]
    return [jnp.asarray(rng.normal(size=(batch, heads, *s)), jnp.float32) for s in shapes]


def _attention(q, k, v, ab):
    return kernel.flash_attention(q, k, v, ab, causal=True, sm_scale=SCALE)


def _plain(q, k, v, ab):
    return kernel.mha_reference_no_custom_vjp(q, k, v, ab, causal=True, sm_scale=SCALE)


def _gradient(attend):
    return jax.grad(lambda *arrays: (attend(*arrays) ** 2).sum(), argnums=(0, 1, 2, 3))


def _second_axis(x):
    return jnp.stack([x, -x, 2 * x], axis=1)


def _first_axis(x):
    return jnp.stack([x, -x, 2 * x])


TRANSFORMED = {
    "value": lambda attend, a: attend(*a),
    "gradient": lambda attend, a: _gradient(attend)(*a),
    "reference gradient": lambda attend, a: _gradient(
        attend
        if attend is _plain
        else lambda *x: kernel.mha_reference(*x, None, True, sm_scale=SCALE)
    )(*a),
    "vmap q": lambda attend, a: jax.vmap(attend, (0, None, None, None))(_first_axis(a[0]), *a[1:]),
    "vmap ab, axis 1": lambda attend, a: jax.vmap(attend, (None, None, None, 1))(
        *a[:3], _second_axis(a[3])
    ),
    "vmap of gradient": lambda attend, a: jax.vmap(_gradient(attend), (None, 0, None, None))(
        a[0], _first_axis(a[1]), *a[2:]
    ),
    "gradient of vmap": lambda attend, a: _gradient(
        lambda q, k, v, ab: jax.vmap(attend, (0, None, None, None))(_first_axis(q), k, v, ab)
    )(*a),
    "nested vmap": lambda attend, a: jax.vmap(
        jax.vmap(attend, (0, None, None, None)), (None, 0, None, None)
    )(_first_axis(a[0]), _first_axis(a[1]), *a[2:]),
    "vmap over cotangents": lambda attend, a: jax.vmap(jax.vjp(attend, *a)[1])(_first_axis(a[0])),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_call_agrees_with_plain_attention(name):
    transformed, arrays = TRANSFORMED[name], _arrays()
    got, expected = transformed(_attention, arrays), transformed(_plain, arrays)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        # Both are float32 sums of fewer than 2^5 terms; any wrong term is of the order of 1.
        np.testing.assert_allclose(x, y, atol=2**-14 * max(1.0, float(jnp.abs(y).max())))


def test_row_without_visible_key_is_zero_and_has_no_gradient():
    q, k, v, ab = _arrays()
    ab = ab.at[:, :, 3].set(-jnp.inf)
    assert not _attention(q, k, v, ab)[:, :, 3].any()
    dq, *_, dab = _gradient(_attention)(q, k, v, ab)
    assert not dq[:, :, 3].any()
    assert not dab[:, :, 3].any()
    assert all(jnp.isfinite(x).all() for x in _gradient(_attention)(q, k, v, ab))


@pytest.mark.parametrize("attend", [kernel.flash_attention, kernel.mha_reference_no_custom_vjp])
def test_huge_hidden_logit_does_not_reach_a_gradient(attend):
    q, k, v = (
        jnp.ones((1, 1, 2, 1)),
        jnp.asarray([0.0, 200.0]).reshape(1, 1, 2, 1),
        jnp.ones((1, 1, 2, 1)),
    )
    gradients = jax.grad(lambda *x: attend(*x, causal=True).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(jnp.isfinite(x).all() for x in gradients)


def test_residuals_are_those_of_the_definition():
    q, k, v, ab = _arrays()
    o, l, m = kernel.attention_residuals(q, k, v, ab, causal=True, sm_scale=SCALE)
    expected = kernel.mha_reference_no_custom_vjp(
        q, k, v, ab, causal=True, sm_scale=SCALE, save_residuals=True
    )
    for got, want in zip((o, l, m), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2**-18, atol=2**-18)


def test_x64_mode():
    arrays = _arrays()
    expected = _gradient(_attention)(*arrays)
    with jax.enable_x64(True):
        got = _gradient(_attention)(*arrays)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_array_equal(x, y)


SECOND_ORDER = {
    "grad of grad": lambda f, x: jax.grad(lambda x: jax.grad(f)(x).sum())(x),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(f), (x,), (x,)),
    "hessian": lambda f, x: jax.hessian(f)(x),
    "jacrev of grad": lambda f, x: jax.jacrev(jax.grad(f))(x),
    "vmap of grad of grad": lambda f, x: jax.vmap(jax.grad(lambda x: jax.grad(f)(x).sum()))(
        _first_axis(x)
    ),
}


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_order_is_refused(name):
    q, *others = _arrays()
    with pytest.raises(NotImplementedError, match="second derivative"):
        SECOND_ORDER[name](lambda q: (_attention(q, *others) ** 2).sum(), q)


def test_forward_mode_is_refused():
    q, *others = _arrays()
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda q: _attention(q, *others), (q,), (q,))


def test_forward_blocks_alone_cannot_be_differentiated():
    q, k, v, _ = _arrays()
    blocks = kernel.BlockSizes(block_q=16, block_k_major=24, block_k=24, block_b=1)
    assert jnp.isfinite(kernel.flash_attention(q, k, v, block_sizes=blocks)).all()
    with pytest.raises(ValueError, match="block_q_major_dkv"):
        jax.grad(lambda q: kernel.flash_attention(q, k, v, block_sizes=blocks).sum())(q)


def test_refused_before_anything_is_traced(monkeypatch):
    q, k, v, ab = _arrays()
    monkeypatch.setattr(
        "kernel.attention.attend", lambda *_: pytest.fail("a refused call was traced")
    )
    with pytest.raises(TypeError, match="float64"):
        kernel.flash_attention(np.asarray(q, np.float64), k, v, ab)
    with pytest.raises(ValueError, match=r"ab has shape \(2, 1, 16, 23\)"):
        kernel.flash_attention(q, k, v, ab[..., 1:])
