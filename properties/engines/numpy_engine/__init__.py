"""The fast engine: a traced program, Pallas kernels included, written out as NumPy source.

It runs the very jaxpr that a TPU's compiler would get, and is stricter than Pallas's interpreters:
blocks and slices out of range are faults, memory nobody wrote is NaN, and parallel grid axes run
shuffled. It cannot see faults of the compiler; no interpreter can.

It reads jax's private data structures (all of it in `jax_internals`). Import `compile_program` from
`program` only where `why_unavailable` finds no reason against it.
"""

import importlib
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


@cache
def why_unavailable() -> str | None:
    """Why this jax cannot be read, or None if a small kernel comes out right."""
    try:
        program = importlib.import_module("properties.engines.numpy_engine.program")
        got = program.compile_program(jax.make_jaxpr(_probe)(_PROBE))(_PROBE)[0]
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        # How a moved name, a renamed parameter or a changed layout shows itself.
        return f"jax {jax.__version__} keeps its internals elsewhere ({error})"
    if not np.array_equal(got, 2 * _PROBE + 3):
        return f"jax {jax.__version__} gives its internals another meaning"
    return None


_PROBE = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)


def _probe(x: jax.Array) -> jax.Array:
    """A bit of each: blocks, scratch, a branch, a loop, sliced reads and writes; 2 x + 3."""

    def kernel(x_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(0) >= 0)
        def _start() -> None:
            sum_ref[...] = x_ref[...] * 2

        def add_one(_: object, total: jax.Array) -> jax.Array:
            return total + 1

        out_ref[pl.ds(0, 8), :] = jax.lax.fori_loop(0, 3, add_one, sum_ref[...])

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
    )
    return call(x)
