"""Transformations that leave a call as it is: compilation, derivatives, loops, contexts.

f(x) stands for o and all gradients of the plain call. Shapes and blocks are the same in the
transformed one, so the bits are.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from properties.claims.transformations.table import (
    attention,
    transformation,
    unchanged,
    with_gradients,
)
from properties.judging.calls import Calls

JIT_FORMS = ("once", "nested", "within_a_gradient", "donated")
POLICIES = (
    *("all", "nothing_saveable", "everything_saveable"),
    *("dots_saveable", "dots_with_no_batch_dims_saveable"),
)
PRECISIONS = ("default", "bfloat16", "tensorfloat32", "float32", "high", "highest")


@transformation
def jit(calls: Calls) -> None:
    """jit(f)(x) = f(x): once, in one another, inside the derivative, and with donated arguments."""
    form = calls.choice("form", JIT_FORMS)
    attend = attention(calls)
    if form == "within_a_gradient":
        attend = jax.jit(attend)
    function: Any = with_gradients(calls, attend)
    if form == "donated":
        function = jax.jit(function, donate_argnums=(0, 1, 2, 6))
    elif form != "within_a_gradient":
        function = jax.jit(function)
    if form == "nested":
        inner = function
        function = jax.jit(lambda *arrays: inner(*arrays))
    unchanged(calls, calls.run_function(function, *calls.arrays))


@transformation
def grad(calls: Calls) -> None:
    """grad(sum(o do)) by any subset of q, k, v and ab = those of all the gradients.

    `parameters["gradient_of"]` is the subset, `form` says whether by grad or value_and_grad.
    """
    names = [name for name in calls.of if name in calls.parameters.get("gradient_of", ())]
    if not names:
        calls.stop("nothing is differentiated")
    take = {"grad": jax.grad, "value_and_grad": jax.value_and_grad}
    form = calls.choice("form", take)
    attend = attention(calls)

    def loss(*arrays: Any) -> Any:
        *inputs, do = arrays
        # In float32 the products' own derivative is do, unrounded.
        return jnp.sum(attend(*inputs).astype(jnp.float32) * do.astype(jnp.float32))

    places = tuple(("q", "k", "v", "ab").index(name) for name in names)
    got = calls.run_function(take[form](loss, argnums=places), *calls.arrays)
    gradients = got[1] if form == "value_and_grad" else got
    unchanged(calls, dict(zip([f"d{name}" for name in names], gradients, strict=True)))


@transformation
def checkpoint(calls: Calls) -> None:
    """The gradients of checkpoint(attention, policy) are those of attention.

    `parameters["policy"]` is one of `POLICIES`; "all" is checkpoint without a policy.
    """
    name = calls.choice("policy", POLICIES)
    policy = None if name == "all" else getattr(jax.checkpoint_policies, name)
    attend = jax.checkpoint(attention(calls), policy=policy)
    unchanged(calls, calls.run_function(with_gradients(calls, attend), *calls.arrays))


@transformation
def scan(calls: Calls) -> None:
    """scan(f)([x, y]) = [f(x), f(y)], where y is x with another sign of q and v."""
    second = calls.with_arrays(q=-calls.arrays.q, v=-calls.arrays.v)
    function = with_gradients(calls, attention(calls))
    stacked = jax.tree.map(lambda *each: np.stack(each), calls.arrays, second.arrays)

    def scanned(*arrays: Any) -> Any:
        return lax.scan(lambda carry, each: (carry, function(*each)), 0, arrays)[1]

    got = calls.run_function(scanned, *stacked)
    unchanged(calls, {name: each[0] for name, each in got.items()})
    expected = second.run()
    second.repeats(
        {name: each[1] for name, each in got.items()},
        {name: expected[name] for name in got},
        second.truth,
    )


@transformation
def fori_loop(calls: Calls) -> None:
    """fori_loop(0, 2, attention as a function of q)(q) = attention(attention(q))."""
    calls.of = ()
    attend = attention(calls)

    def looped(count: Any, q: Any, *others: Any) -> Any:
        return lax.fori_loop(0, count, lambda _, q: attend(q, *others), q)

    # The count is traced, so that the loop cannot be unrolled.
    o = calls.run_function(looped, np.int32(2), *calls.arrays[:6])
    again = calls.with_arrays(q=calls.run()["o"])
    again.of = ()
    again.repeats({"o": o}, {"o": again.run()["o"]}, again.truth)


@transformation
def cond(calls: Calls) -> None:
    """cond(p, f, g)(x) = f(x) if p, else g(x), where g is f of another sign of q."""
    function = with_gradients(calls, attention(calls))

    def chosen(p: Any, *arrays: Any) -> Any:
        return lax.cond(p, function, lambda q, *others: function(-q, *others), *arrays)

    unchanged(calls, calls.run_function(chosen, np.True_, *calls.arrays))
    other = calls.with_arrays(q=-calls.arrays.q)
    got, expected = calls.run_function(chosen, np.False_, *calls.arrays), other.run()
    other.repeats(got, {name: expected[name] for name in got}, other.truth)


@transformation
def x64(calls: Calls) -> None:
    """f(x) is the same under `jax.enable_x64`, where jax's own integers have 64 bits."""
    with jax.enable_x64(True):
        got = calls.run_function(with_gradients(calls, attention(calls)), *calls.arrays)
    unchanged(calls, got)


@transformation
def matmul_precision(calls: Calls) -> None:
    """f(x) is the same under every `jax.default_matmul_precision`.

    Engines on a CPU know one precision of a float32 product; a TPU has several, so float32 is left
    out there.
    """
    precision = calls.choice("precision", PRECISIONS)
    with jax.default_matmul_precision(precision):
        got = calls.run_function(with_gradients(calls, attention(calls)), *calls.arrays)
    if calls.result.mode == "tpu" and calls.case.dtype == "float32":
        calls.stop("precisions of float32 products differ on a TPU")
    unchanged(calls, got)
