"""Turns a traced program into one that Pallas's interpreters run on the CPU.

A `pallas_call` equation carries its `interpret` setting as a parameter, so the program a TPU would
get can be switched to an interpreter after tracing, without calling the target again and without
the target having an `interpret` argument.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.extend.core as jex
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SIMULATIONS: dict[str, dict[str, Any]] = {
    "tpu-interpret": {},
    **{
        f"tpu-interpret-{dma}-order-{seed}": {
            "dma_execution_mode": dma,
            "random_seed": seed,
            "num_cores_or_threads": 2,
            "detect_races": True,
        }
        for dma in ("eager", "on_wait")
        for seed in range(4)
    },
}
"""Simulated TPUs by mode: one core, or two with race detection, which costs several times as much.

Copies between memories are made when they are started, or as late as they may be; grid axes that
are parallel are visited in one of several random orders.
"""


def tpu_interpret_params(mode: str) -> pltpu.InterpretParams:
    """A simulated TPU that forgives nothing: memory starts as NaN, stray reads raise."""
    defaults: dict[str, Any] = {
        "uninitialized_memory": "nan",
        "out_of_bounds_reads": "raise",
        "random_seed": 0,
    }
    return pltpu.InterpretParams(**(defaults | SIMULATIONS[mode]))


def with_interpret(program: jex.ClosedJaxpr, interpret: Any) -> jex.ClosedJaxpr:
    """Returns `program` with `interpret` set on every pallas_call, however deeply nested.

    `interpret` is what `pl.pallas_call` takes under that name: True or `pltpu.InterpretParams`.
    """
    return _Rewriter(interpret).jaxpr(program)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a traced program, those of the programs that it calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jex.jaxprs_in_params(equation.params):
            yield from equations(inner)


def kernels(program: Any) -> list[Any]:
    """The `pallas_call` equations of a traced program."""
    return [each for each in equations(program) if each.primitive.name == "pallas_call"]


def is_mapped(kernel: Any) -> bool:
    """Whether vmap gave a `pallas_call` more axes than it says how to run.

    Pallas compiles such a kernel for a TPU, and simulates none.
    """
    semantics = getattr(kernel.params["compiler_params"], "dimension_semantics", None)
    return semantics is not None and len(semantics) != len(kernel.params["grid_mapping"].grid)


@cache
def _effects_of(interpret: Any) -> frozenset:
    """The effects that jax gives a pallas_call under `interpret`.

    Simulated TPU memory lives in ordered host callbacks. Equations that do not declare these
    effects would be reordered or dropped, so we ask jax which they are by tracing a tiny kernel.
    """

    def kernel(out_ref: Any) -> None:
        out_ref[...] = jax.numpy.zeros((8, 128), jax.numpy.float32)

    shape = jax.ShapeDtypeStruct((8, 128), jax.numpy.float32)
    call = pl.pallas_call(kernel, out_shape=shape, interpret=interpret)
    return frozenset(jax.make_jaxpr(call)().effects)


class _Rewriter:
    def __init__(self, interpret: Any) -> None:
        self.interpret = interpret
        self.effects = _effects_of(interpret)
        # jaxprs are shared between equations; rewriting each one once keeps them shared, which is
        # what lets jax lower them once.
        self.done: dict[int, Any] = {}

    def jaxpr(self, jaxpr: Any) -> Any:
        if id(jaxpr) not in self.done:
            self.done[id(jaxpr)] = self._rewritten(jaxpr)
        return self.done[id(jaxpr)]

    def _rewritten(self, jaxpr: Any) -> Any:
        # Until jax 0.12 a closed jaxpr wraps an open one; from then on they are one class.
        if isinstance(jaxpr, jex.ClosedJaxpr) and jaxpr.jaxpr is not jaxpr:
            inner = self.jaxpr(jaxpr.jaxpr)
            return jaxpr if inner is jaxpr.jaxpr else jaxpr.replace(jaxpr=inner)
        equations = [self.equation(equation) for equation in jaxpr.eqns]
        if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(eqns=equations, effects={*jaxpr.effects, *self.effects})

    def equation(self, equation: Any) -> Any:
        if equation.primitive.name == "pallas_call":
            params = {**equation.params, "interpret": self.interpret}
        else:
            params = {name: self.parameter(value) for name, value in equation.params.items()}
            if all(params[name] is value for name, value in equation.params.items()):
                return equation
        return equation.replace(params=params, effects={*equation.effects, *self.effects})

    def parameter(self, value: Any) -> Any:
        if isinstance(value, jex.Jaxpr | jex.ClosedJaxpr):
            return self.jaxpr(value)
        if isinstance(value, tuple | list):
            items = [self.parameter(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return type(value)(items)
        return value


def as_function(program: jex.ClosedJaxpr) -> Callable[..., list[Any]]:
    """A fresh function over flat arguments: jax caches by function object, so none is reused."""
    evaluate = jex.jaxpr_as_fun(program)
    return lambda *leaves: evaluate(*leaves)
