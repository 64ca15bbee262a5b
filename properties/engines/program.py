"""A target traced once, and every way of running the trace."""

import importlib.util
import itertools
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.export
import jax.extend.core as jex
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from properties import environment
from properties.engines import chips, hardware, numpy_engine
from properties.engines.errors import Unsupported
from properties.engines.interpret import (
    SIMULATIONS,
    as_function,
    is_mapped,
    kernels,
    tpu_interpret_params,
    with_interpret,
)
from properties.engines.simulation import raising_faults
from properties.engines.stages import STAGES

Leaves = list[Any]

MODES = ("interpret", "tpu-interpret", "numpy", "tpu")

# The interpreters compile much code to run it for milliseconds: LLVM's optimiser costs more than it
# saves. It also contracts x * y - z to a fused multiply-add, which keeps the product's rounding
# error: without it every operation rounds by itself, as the program says.
_QUICK_COMPILE: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

# jax remembers what it traced: 0.8 MB for each attention configuration, 30 GB in an hour. Programs
# hold what they need themselves.
_TRACES_PER_CLEARING = 200
_traces = itertools.count(1)


@cache
def modes_available() -> tuple[str, ...]:
    """The modes that `Program.run` can serve on this machine, with this jax.

    Prints one line to standard error, once, if the NumPy engine is off.
    """
    reason = numpy_engine.why_unavailable()
    if reason is not None:
        print(f"mode numpy is off, interpret takes its place: {reason}", file=sys.stderr)
    missing = {"numpy": reason is not None, "tpu": not chips.tpu_attached()}
    return tuple(mode for mode in MODES if not missing.get(mode))


def trace(function: Callable[..., Any], *args: Any) -> "Program":
    """Traces `function` once, without any interpret flag: the program is the one a TPU would get.

    Args:
      function: what to run; positional arguments only, pytrees in and out.
      args: pytrees of arrays or `jax.ShapeDtypeStruct`; only shapes and dtypes are used.

    Raises what `function` raises.
    """
    if next(_traces) % _TRACES_PER_CLEARING == 0:
        jax.clear_caches()
        environment.give_back_memory()
    with STAGES.measure("trace"):
        leaves, structure = jax.tree.flatten(args)
        shapes = [_shape(leaf) for leaf in leaves]
        jaxpr, out = jax.make_jaxpr(function, return_shape=True)(
            *jax.tree.unflatten(structure, shapes)
        )
    return Program(jaxpr, shapes, structure, jax.tree.structure(out))


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    # Without x64 mode jax sees 64-bit arrays as 32-bit ones.
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype))


class Program:
    """A traced target. Executables are kept, so that new data of the same shapes reuse them."""

    def __init__(
        self, jaxpr: jex.ClosedJaxpr, shapes: list[jax.ShapeDtypeStruct], structure: Any, out: Any
    ) -> None:
        self.jaxpr = jaxpr
        self.shapes = shapes
        self._structure = structure
        self._out_structure = out
        self._executables: dict[str, Callable[..., Leaves]] = {}

    def run(self, mode: str, *args: Any) -> Any:
        """Runs the program on `args` and returns its result as NumPy arrays.

        Args:
          mode: "interpret" (Pallas's HLO interpreter), "tpu-interpret" (simulated TPU memory,
            uninitialised memory is NaN, stray reads raise) or another of `SIMULATIONS`, "numpy"
            (the fast engine), or "tpu" (the attached chip).
          args: arrays with the structure, shapes and dtypes that were traced.

        Raises ValueError for another mode or for arguments that differ from those traced;
        Unsupported, before anything runs, if the engine lacks something that is needed; KernelFault
        (NumPy, and for a race) or the interpreter's own error if the program itself is at fault.
        """
        if mode == "tpu":
            return self.send(*args)()
        leaves = self._checked(args)
        executable = self._prepared(mode)
        with STAGES.measure("run"):
            try:
                results = [np.asarray(result) for result in executable(*leaves)]
            except BaseException:
                if mode.startswith("tpu-interpret"):
                    # The simulated memory outlives the exception; the next run would see it.
                    pltpu.reset_tpu_interpret_mode_state()
                raise
        return jax.tree.unflatten(self._out_structure, results)

    def send(self, *args: Any) -> Callable[[], Any]:
        """Starts the program on the attached chip; what this returns waits for its results.

        The chip computes while the caller prepares other data or judges earlier results.
        """
        leaves = self._checked(args)
        executable = self._prepared("tpu")
        with STAGES.measure("run"):
            on_their_way = executable(*leaves)

        def fetch() -> Any:
            with STAGES.measure("run"):
                return jax.tree.unflatten(self._out_structure, jax.device_get(on_their_way))

        return fetch

    def lower_for(self, generation: str) -> jax.stages.Lowered:
        """What the compiler of a TPU generation is given; no TPU is needed.

        Args:
          generation: one of "v4", "v5e", "v5p", "v6e", "tpu7x".

        Raises ValueError for another generation, Unsupported without libtpu, and what Pallas says
        of a kernel that it cannot lower.
        """
        return self._lowered_for(hardware.compile_only_device(generation))

    def compile_for(self, generation: str) -> None:
        """Compiles ahead of time for a TPU generation, exactly what mode "tpu" runs on one.

        Raises what `lower_for` raises, and the compiler's own error if it refuses.
        """
        lowered = self.lower_for(generation)
        with STAGES.measure("compile"):
            lowered.compile()

    def export(self) -> jax.export.Exported:
        """The program as `jax.export` gives it away for a TPU, as a function of flat arrays.

        Raises Unsupported without flatbuffers, by which such a thing is serialised.
        """
        if importlib.util.find_spec("flatbuffers") is None:
            raise Unsupported("flatbuffers, by which jax.export serialises, is not installed")
        with STAGES.measure("lower"):
            function = jax.jit(as_function(self.jaxpr))
            return jax.export.export(function, platforms=["tpu"])(*self.shapes)

    def _lowered_for(self, device: Any) -> jax.stages.Lowered:
        sharding = hardware.single_device(device)
        shapes = [
            jax.ShapeDtypeStruct(traced.shape, traced.dtype, sharding=sharding)
            for traced in self.shapes
        ]
        with STAGES.measure("lower"):
            # The results' as well, since a program without arguments has no other.
            function = jax.jit(as_function(self.jaxpr), out_shardings=sharding)
            return function.trace(*shapes).lower()

    def _checked(self, args: Any) -> Leaves:
        leaves, structure = jax.tree.flatten(args)
        if structure != self._structure:
            raise ValueError(f"args have structure {structure}; traced was {self._structure}")
        for number, (leaf, traced) in enumerate(zip(leaves, self.shapes, strict=True)):
            got = _shape(leaf)
            if (got.shape, got.dtype) != (traced.shape, traced.dtype):
                raise ValueError(
                    f"array {number} of args is {got.dtype}{list(got.shape)}; "
                    f"traced was {traced.dtype}{list(traced.shape)}"
                )
        return [
            np.asarray(leaf, traced.dtype) for leaf, traced in zip(leaves, self.shapes, strict=True)
        ]

    def _prepared(self, mode: str) -> Callable[..., Leaves]:
        if mode not in self._executables:
            self._executables[mode] = self._executable(mode)
        return self._executables[mode]

    def _executable(self, mode: str) -> Callable[..., Leaves]:
        if mode == "interpret":
            return self._interpreted(True)
        if mode in SIMULATIONS:
            params = tpu_interpret_params(mode)
            if any(map(is_mapped, kernels(self.jaxpr))):
                raise Unsupported("Pallas simulates no TPU that runs a kernel under vmap")
            try:
                simulated = self._interpreted(params)
            except NotImplementedError as error:
                raise Unsupported(f"Pallas simulates no TPU that could do this: {error}") from error
            return raising_faults(simulated) if params.detect_races else simulated
        if mode == "numpy":
            return self._written_in_numpy()
        if mode == "tpu":
            lowered = self._lowered_for(jax.devices("tpu")[0])
            with STAGES.measure("compile"):
                return lowered.compile()
        raise ValueError(f"mode {mode!r} is not known; choose one of {', '.join(MODES)}")

    def _written_in_numpy(self) -> Callable[..., Leaves]:
        reason = numpy_engine.why_unavailable()
        if reason is not None:
            raise Unsupported(reason)
        from properties.engines.numpy_engine.program import compile_program

        with STAGES.measure("lower"):
            return compile_program(self.jaxpr)

    def _interpreted(self, interpret: Any) -> Callable[..., Leaves]:
        jaxpr = with_interpret(self.jaxpr, interpret)
        with jax.default_device(jax.devices("cpu")[0]):
            with STAGES.measure("lower"):
                lowered = jax.jit(as_function(jaxpr)).lower(*self.shapes)
            with STAGES.measure("compile"):
                return lowered.compile(compiler_options=_QUICK_COMPILE)
