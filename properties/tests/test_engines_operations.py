"""The NumPy engine's operations against XLA's, one primitive at a time."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from properties import engines

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def both(function, *args):
    """The results of NumPy and of XLA, as lists of arrays."""
    program = engines.trace(function, *args)
    return (
        jax.tree.leaves(program.run("numpy", *args)),
        jax.tree.leaves(program.run("interpret", *args)),
    )


def assert_identical(function, *args):
    for ours, theirs in zip(*both(function, *args), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def integers(*shape):
    return np.random.default_rng(2).integers(-50, 50, shape, dtype=np.int32)


X, Y, N, M = floats(4, 6), floats(4, 6)[::-1].copy(), integers(4, 6), integers(4, 6)[::-1].copy()
MASK = X > 0

EXACT = {
    "add": (lambda x, y: x + y, X, Y),
    "scalar operand": (lambda x: 2 * x - 0.5, X),
    "div": (lambda x, y: x / y, X, Y),
    "sqrt": (lambda x: jnp.sqrt(jnp.abs(x)), X),
    "max": (jnp.maximum, X, Y),
    "compare": (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), X, Y),
    "logic": (lambda x, y: (x & y, x | y, x ^ y, ~x), MASK, Y > 0),
    "bits": (lambda n, m: (n & m, n | m, n ^ m, ~n), N, M),
    "integer wraps": (lambda n: (n * 100_000_000, n + jnp.int32(2**31 - 1)), N),
    "rounding": (lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x * 4), jnp.trunc(x)), X),
    "round half away": (lambda x: lax.round(jnp.floor(4 * x) / 2), X),
    "sign": (lambda x, n: (jnp.sign(x), jnp.sign(n), jnp.abs(n), -n), X, N),
    "integer_pow": (lambda x: (x**2, x**-2), np.array([1, 2, 0.5, -4], np.float32)),
    "clamp": (lambda x: jnp.clip(x, -0.5, 0.5), X),
    "select": (lambda b, x, y: jnp.where(b, x, y), MASK, X, Y),
    "select among three": (lambda n, x: lax.select_n(n % 3, x, x + 1, x + 2), np.abs(N), X),
    "is_finite": (jnp.isfinite, np.array([0, np.inf, -np.inf, np.nan], np.float32)),
    "nan through max": (
        lambda x: (jnp.maximum(x, 0), jnp.max(x)),
        np.array([np.nan, 1], np.float32),
    ),
    "reductions": (lambda x: (x.max(1), x.min(0), x.max(), jnp.any(x > 1, 1), jnp.all(x > -9)), X),
    "integer sums": (lambda n: (n.sum(1), n.prod(0), jnp.cumsum(n, 1), jnp.cumprod(n, 0)), N),
    "running": (lambda n: (lax.cummax(n, 1), lax.cummin(n, 0), lax.cumsum(n, 0, reverse=True)), N),
    "argmax": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), X),
    "convert": (lambda x, n: ((x * 90).astype(jnp.int8), n.astype(jnp.float32), n != 0), X, N),
    "saturates": (
        lambda x: (x.astype(jnp.int32), x.astype(jnp.uint8)),
        np.array([3e9, -3e9, np.nan, np.inf, -1.5, 300], np.float32),
    ),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int32), X),
    "bitcast narrower": (lambda x: lax.bitcast_convert_type(x, jnp.uint16), X),
    "shifts": (
        lambda n: (n << 3, n >> 2, lax.shift_right_logical(n, jnp.int32(3))),
        N,
    ),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), X),
    "iota": (lambda x: x + lax.broadcasted_iota(jnp.float32, (4, 6), 1), X),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None, :], (4, 3, 6)), X),
    "reshape": (lambda x: (x.reshape(3, 8), x[None].squeeze(0), x.T, x[::-1]), X),
    "joins": (
        lambda x, y: (jnp.concatenate([x, y], 1), jnp.stack([x, y]), jnp.tile(x, (2, 3))),
        X,
        Y,
    ),
    "slices": (lambda x: (x[1:3, ::2], jnp.split(x, 2)), X),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (3, -2), (2, 3)), X),
    "dynamic_update_slice": (lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 9, (3, 1)), X),
    "pad": (lambda x: lax.pad(x, jnp.float32(7), [(1, 2, 0), (0, 1, 2)]), X),
    "pad that cuts": (lambda x: lax.pad(x, jnp.float32(7), [(-1, 0, 0), (-2, -1, 1)]), X),
    "gather rows": (lambda x, n: x[n], X, np.array([3, 0, 3, -1], np.int32)),
    "gather out of range": (lambda x, n: jnp.take(x, n, axis=0), X, np.array([9, 0, -9], np.int32)),
    "gather clamped": (
        lambda x, n: jnp.take(x, n, 1, mode="clip"),
        X,
        np.array([9, 0, 2], np.int32),
    ),
    "gather along": (lambda x, n: jnp.take_along_axis(x, n, 1), X, np.abs(N) % 6),
    "sort": (lambda x, y: (jnp.sort(x, 1), jnp.argsort(x, 0), lax.sort((x, y), dimension=1)), X, Y),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.negative, lambda x: x * 2, x), X),
    "switch": (
        lambda x: lax.switch(jnp.int32(7), [jnp.negative, lambda x: x, lambda x: 2 * x], x),
        X,
    ),
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True), X),
    "while": (
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[2], c[1]), (0, x, -x)),
        X,
    ),
    "custom_jvp": (jax.nn.relu, X),
    "checkpoint": (jax.checkpoint(lambda x: x * 2), X),
}


@pytest.mark.parametrize("name", EXACT)
def test_same_result(name):
    function, *args = EXACT[name]
    assert_identical(function, *args)


def test_integer_division_truncates_and_survives_zero_and_overflow():
    limits = np.iinfo(np.int32)
    dividends = np.array([7, -7, 7, -7, 5, 0, limits.min, limits.min, limits.max], np.int32)
    divisors = np.array([2, 2, -2, -2, 0, 0, -1, 1, -1], np.int32)
    assert_identical(lambda n, m: (lax.div(n, m), lax.rem(n, m)), dividends, divisors)
    assert_identical(lambda n, m: (n // m, n % m), dividends[:4], divisors[:4])
    for dividend, divisor in zip(dividends, [*divisors[:-1], 3], strict=True):
        scalars = np.asarray(dividend), np.asarray(divisor, np.int32)
        assert_identical(lambda n, m: (lax.div(n + 0, m + 0), lax.rem(n + 0, m + 0)), *scalars)


TRANSCENDENTAL = {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": lambda x: jnp.log(jnp.abs(x)),
    "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "rsqrt": lambda x: lax.rsqrt(jnp.abs(x)),
    "erf": lax.erf,
    "pow": lambda x: jnp.abs(x) ** 1.5,
    "atan2": lambda x: jnp.arctan2(x, x + 1),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
}


@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_transcendental(name):
    ((ours,), (theirs,)) = both(TRANSCENDENTAL[name], X)
    assert ours.dtype == np.float32
    # Neither library rounds these correctly; both stay within a few units in the last place of 1
    # (logarithms cancel near 1, hence absolute as well as relative).
    spacing = 8 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(ours, theirs, rtol=spacing, atol=spacing)


DOTS = {
    "plain": ((5, 7), (7, 3), (((1,), (0,)), ((), ()))),
    "both transposed": ((7, 5), (3, 7), (((0,), (1,)), ((), ()))),
    "batched": ((2, 5, 7), (2, 7, 3), (((2,), (1,)), ((0,), (0,)))),
    "batch inside": ((5, 2, 7), (7, 3, 2), (((2,), (0,)), ((1,), (2,)))),
    "two contracted": ((5, 7, 2), (2, 7, 3), (((1, 2), (1, 0)), ((), ()))),
    "vector": ((7,), (7, 3), (((0,), (0,)), ((), ()))),
    "outer": ((4,), (3,), (((), ()), ((), ()))),
}


@pytest.mark.parametrize("name", DOTS)
def test_dot_general_of_integers_is_exact(name):
    lhs, rhs, numbers = DOTS[name]
    a, b = integers(*lhs), integers(*rhs)
    assert_identical(lambda a, b: lax.dot_general(a, b, numbers), a, b)
    assert_identical(
        lambda a, b: lax.dot_general(a, b, numbers), a.astype(np.float32), b.astype(np.float32)
    )


def test_dot_general_of_bfloat16_sums_in_float32():
    # 256 + 1 needs 9 bits: a sum kept in bfloat16 would lose every 1.
    a = np.ones((1, 300), BFLOAT16)
    b = np.ones((300, 1), BFLOAT16)
    a[0, 0] = 256
    numbers = (((1,), (0,)), ((), ()))
    wide = engines.trace(
        lambda a, b: lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32), a, b
    )
    assert wide.run("numpy", a, b) == np.float32(555)
    narrow = engines.trace(lambda a, b: lax.dot_general(a, b, numbers), a, b)
    assert narrow.run("numpy", a, b) == BFLOAT16.type(555)


def every_bfloat16():
    """All finite bfloat16 numbers that XLA's CPU code does not flush to zero, and infinities."""
    numbers = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
    wide = numbers.astype(np.float32)
    return numbers[np.isinf(wide) | (np.abs(wide) >= 2.0**-126) | (wide == 0)]


UNARY = {
    "square root": lambda x: jnp.sqrt(jnp.abs(x)),
    "reciprocal": lambda x: 1 / x,
    "half": lambda x: x * 0.5,
    "third": lambda x: x / 3,
    "square": lambda x: x * x,
    "negate": lambda x: -x,
    "floor": jnp.floor,
    "maximum": lambda x: jnp.maximum(x, 1.5),
    "to float32": lambda x: x.astype(jnp.float32),
    "sign": jnp.sign,
}


@pytest.mark.parametrize("name", UNARY)
def test_bfloat16_rounds_to_the_bit_on_every_number(name):
    numbers = every_bfloat16()
    ((ours,), (theirs,)) = both(UNARY[name], numbers)
    normal = ~(np.abs(theirs.astype(np.float32)) < 2.0**-126)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours[normal], theirs[normal])


@pytest.mark.parametrize("operation", [lax.add, lax.sub, lax.mul, lax.div])
def test_bfloat16_pairs_round_to_the_bit(operation):
    random = np.random.default_rng(3)
    x, y = (
        random.standard_normal((2, 50_000)) * 2.0 ** random.integers(-20, 20, (2, 50_000))
    ).astype(BFLOAT16)
    assert_identical(operation, x, y)


def test_float32_rounds_to_nearest_even_on_the_way_to_bfloat16():
    bits = np.random.default_rng(4).integers(0x3000_0000, 0x4F00_0000, 50_000).astype(np.uint32)
    ties = (bits[:1000] & ~np.uint32(0xFFFF)) | np.uint32(0x8000)
    x = np.concatenate([bits, ties]).view(np.float32)
    assert_identical(lambda x: x.astype(jnp.bfloat16), x)


def test_bfloat16_rounds_after_every_operation():
    # 1 + 2^-8 is a tie that rounds to 1, so the sum is 0; in float32 it would be 2^-8.
    x = np.full(4, 2.0**-8, BFLOAT16)
    program = engines.trace(lambda x: (1 + x) - 1, x)
    np.testing.assert_array_equal(program.run("numpy", x), np.zeros(4, BFLOAT16))


def test_bfloat16_sums_round_once():
    x = np.ones((2, 300), BFLOAT16)
    x[:, 0] = 256
    program = engines.trace(lambda x: lax.reduce_sum(x, axes=(1,)), x)
    np.testing.assert_array_equal(program.run("numpy", x), np.full(2, 555).astype(BFLOAT16))


def test_unknown_operation_is_named_before_anything_runs():
    program = engines.trace(lambda x: lax.conv(x, x, (1, 1), "SAME"), floats(1, 1, 4, 4))
    with pytest.raises(engines.Unsupported, match="conv_general_dilated"):
        program.run("numpy", floats(1, 1, 4, 4))
