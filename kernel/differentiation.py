"""Derivative and batching rules of the kernels.

`attend` is what a call becomes once its arguments are checked. Its derivative is a rule of its own;
a mapped axis is folded into the batch, because a kernel's grid has no room for another axis. Each
kernel also gets a rule that refuses to be differentiated, so that a second derivative is an error
that says so and never a wrong number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from kernel.backward import Saved, backward
from kernel.forward import forward
from kernel.tile import Call, Inputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(call: Call, inputs: Inputs) -> jax.Array:
    """Attention with its derivative: o, like q.

    Raises:
      ValueError: differentiated, and the blocks lack the backward fields.
      NotImplementedError: differentiated twice.
    """
    (o,) = _run("forward", call, inputs)
    return o


def attend_with_residuals(call: Call, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """(o, statistics) as `forward.forward` returns them. Not differentiable."""
    return _run("forward_with_residuals", call, inputs)


def _attend_forward(call, inputs):
    missing = call.blocks.missing_backward_blocks
    if missing:
        raise ValueError(
            f"block_sizes lacks {', '.join(missing)}, and the call is differentiated; "
            "add them, or pass block_sizes=None"
        )
    o, statistics = attend_with_residuals(call, inputs)
    return o, (inputs, o, statistics)


def _attend_backward(call, residuals, do):
    inputs, o, statistics = residuals
    return (_run("backward", call, inputs, Saved(statistics, o, do)),)


attend.defvjp(_attend_forward, _attend_backward)

_KERNELS: dict[str, Callable] = {
    "forward": functools.partial(forward, save_residuals=False),
    "forward_with_residuals": functools.partial(forward, save_residuals=True),
    "backward": backward,
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(name: str, call: Call, *arrays):
    """One kernel with its batching rule and its refusal to be differentiated.

    jit stands here, inside the derivative rule, so that a kernel is traced once for all its uses.
    """
    kernel = jax.custom_vjp(_folding_mapped_axis(functools.partial(_KERNELS[name], call)))
    kernel.defvjp(_refuse_second_derivative, _refuse_second_derivative)
    return kernel(*arrays)


def _folding_mapped_axis(kernel):
    """`kernel` with the rule that a mapped axis becomes part of the batch."""

    @custom_vmap
    def folded(*arrays):
        return kernel(*arrays)

    @folded.def_vmap
    def fold(axis_size, mapped, *arrays):
        def into_batch(array, is_mapped):
            if not is_mapped:
                array = jnp.broadcast_to(array, (axis_size, *array.shape))
            return array.reshape(-1, *array.shape[2:])

        outputs = folded(*jax.tree.map(into_batch, arrays, tuple(mapped)))
        unfolded = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), outputs)
        return unfolded, jax.tree.map(lambda _: True, outputs)

    return folded


def _refuse_second_derivative(*_):
    raise NotImplementedError(
        "flash_attention has no second derivative; differentiate "
        "kernel.mha_reference_no_custom_vjp twice instead"
    )
