"""What goes wrong in a simulated TPU of several cores, made exceptions of one line.

Where `InterpretParams` has `on_race`, as in jax 0.12, a race is an exception. Before, as in 0.10,
races are printed and the simulation goes on. It does not promise to print, so that a kernel with a
race is run first: where nothing is heard of that, hearing nothing of others means nothing.
"""

import contextlib
import dataclasses
import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties.engines.errors import KernelFault, Unsupported

_REPORTED = "RACE DETECTED"


def raising_faults(simulated: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """`simulated`, which runs in a simulation with race detection, so that it raises KernelFault
    for races and for what the simulation raises: stray reads, and copies that nobody awaits.

    It raises Unsupported, before anything runs, if this jax does not report races as others do.
    """

    def run(*leaves: Any) -> list[Any]:
        if not _races_are_reported():
            raise Unsupported("this jax does not report races in a way that is known")
        return _run(simulated, *leaves)

    return run


def _run(simulated: Callable[..., list[Any]], *leaves: Any) -> list[Any]:
    printed = io.StringIO()
    try:
        with _each_operation_rounding(), contextlib.redirect_stdout(printed):
            # Waits for the end, after which nothing more is printed.
            results = [np.asarray(result) for result in simulated(*leaves)]
            jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        # The text is a traceback through jax; at its end stands what the matter is.
        described = _race(text) if _REPORTED in text else text.strip().splitlines()[-1]
        raise KernelFault(described) from error
    if _REPORTED in printed.getvalue():
        raise KernelFault(_race(printed.getvalue()))
    return results


@contextlib.contextmanager
def _each_operation_rounding() -> Iterator[None]:
    """What jax compiles meanwhile, in any thread, contracts no x * y + z to a fused multiply-add.

    The simulation compiles what its cores run when it runs, and takes no compiler options.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def _race(text: str) -> str:
    """The first race that `text` reports, in one line, without the clocks that prove it."""
    race = re.sub(r"clock: (<[^>]*>|\[[^\]]*\])", "", text.split(_REPORTED)[1])
    return f"race between cores: {' '.join(race.split())[:400]}"


@functools.cache
def _races_are_reported() -> bool:
    """Whether a race that is there is heard of: two parallel steps write one block."""
    if "on_race" in (field.name for field in dataclasses.fields(pltpu.InterpretParams)):
        return True

    def kernel(out_ref: Any) -> None:
        out_ref[...] = jnp.full(out_ref.shape, pl.program_id(0), out_ref.dtype)

    racing = pl.pallas_call(
        kernel,
        grid=(2,),
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.int32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
        interpret=pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2),
    )
    try:
        _run(lambda: [racing()])
    except KernelFault:
        pltpu.reset_tpu_interpret_mode_state()
        return True
    return False
