"""Runs a traced program with NumPy alone: no lowering, no XLA."""

from collections.abc import Callable
from typing import Any

import jax.extend.core as jex
import numpy as np

from properties.engines.numpy_engine import jax_internals as jax_side
from properties.engines.numpy_engine.grid import Kernel
from properties.engines.numpy_engine.rules import Operand
from properties.engines.numpy_engine.source import Source
from properties.engines.numpy_engine.writer import Writer


def compile_program(program: jex.ClosedJaxpr) -> Callable[..., list[Any]]:
    """Compiles a jaxpr into a function from its flat inputs to its flat outputs.

    Raises Unsupported, naming what is missing, if any part of it has no rule.
    """
    with np.errstate(all="ignore"):
        body = jax_side.body(program)
        source = Source(functional=True)
        names = [f"arg{number}" for number in range(len(body.inputs))]
        arguments = [
            Operand(name, tuple(variable.aval.shape), variable.aval.dtype)
            for name, variable in zip(names, body.inputs, strict=True)
        ]
        results = Writer(source, compile_kernel=Kernel).body(body, arguments)
        function = source.function("program", names, list(map(str, results)))

    def run(*leaves: Any) -> list[Any]:
        # Overflow to inf and NaN from masked positions are part of correct programs.
        # And memory is laid out one way: a BLAS sums in another order along numbers with gaps.
        with np.errstate(all="ignore"):
            return list(function(*(np.asarray(leaf, order="C") for leaf in leaves)))

    return run
