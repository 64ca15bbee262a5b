"""Runs a kernel over its grid in NumPy.

Stricter than Pallas's interpreters. Parallel grid axes are visited in a shuffled order, and what a
parallel coordinate leaves behind, in scratch or in an output block, is poison at the next: on the
chip another core may have run it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from properties.engines.errors import KernelFault, Unsupported
from properties.engines.numpy_engine import jax_internals as jax_side
from properties.engines.numpy_engine.arithmetic import poison
from properties.engines.numpy_engine.blocks import Blocks, InputBlocks, OutputBlocks
from properties.engines.numpy_engine.jax_internals import KernelCall
from properties.engines.numpy_engine.memory import allocate, unsettled
from properties.engines.numpy_engine.rules import Operand
from properties.engines.numpy_engine.source import Source
from properties.engines.numpy_engine.writer import Writer

_INT32 = np.dtype(np.int32)
_SHUFFLE_SEED = 0


class Kernel:
    """A `pallas_call`, compiled: a function from its operands to its outputs.

    Raises Unsupported when made of a kernel that does what the engine has no rule for, and
    KernelFault when called, if the kernel does what a TPU leaves undefined.
    """

    def __init__(self, call: KernelCall) -> None:
        self.call = call
        self.allocators = [allocate(aval) for aval in call.scratch]
        self.semaphores = [jax_side.is_semaphore(aval) for aval in call.scratch]
        # Two steps that differ in the leading parallel axes share nothing.
        self.sharing = slice(0, [*call.parallel, False].index(False))
        self.source = Source()
        try:
            self.body = _body(call, self.source)
            self.index_maps = _index_maps(call)
        except Unsupported as error:
            raise Unsupported(f"{error}, in kernel {call.name}") from error

    def __call__(self, *operands: Any) -> tuple[np.ndarray, ...]:
        given = iter(operands)
        grid = tuple(int(next(given)) if size is None else size for size in self.call.grid)
        arrays = [np.asarray(operand) for operand in given]
        results = self._results(arrays)
        prefetched = arrays[: self.call.prefetched]
        inputs = arrays[self.call.prefetched :]
        private = [self.call.prefetched + n in self.call.written for n in range(len(inputs))]
        fetched = list(map(InputBlocks, self.call.inputs, inputs, private))
        stored = list(map(OutputBlocks, self.call.outputs, results))
        scratch = [make() for make in self.allocators]
        self._run(grid, prefetched, fetched, stored, scratch)
        return tuple(results)

    def _results(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Main memory for the outputs; an aliased one shares its input's."""
        results = [poison(window.shape, window.dtype) for window in self.call.outputs]
        for operand, output in self.call.aliases.items():
            # The caller's own array stays as it is.
            results[output] = arrays[operand] = arrays[operand].copy()
        return results

    def _run(
        self,
        grid: tuple[int, ...],
        prefetched: Sequence[np.ndarray],
        fetched: Sequence[InputBlocks],
        stored: Sequence[OutputBlocks],
        scratch: Sequence[np.ndarray],
    ) -> None:
        sizes = self._own(tuple(map(np.int32, grid)))
        operands: list[Blocks] = [*fetched, *stored]
        previous = None
        for step in _steps(grid, self.call.parallel):
            if previous is not None and step[self.sharing] != previous[self.sharing]:
                self._forget(stored, scratch)
            previous = step
            try:
                places = self.index_maps(*step, *prefetched)
                blocks = [each.at(place) for each, place in zip(operands, places, strict=True)]
                self.body(self._own(step), sizes, *prefetched, *blocks, *scratch)
            except KernelFault as fault:
                raise KernelFault(self._explained(fault, step)) from None
        for blocks_out in stored:
            blocks_out.write_back()
        for memory, semaphores in zip(scratch, self.semaphores, strict=True):
            if semaphores and (complaint := unsettled(memory)):
                raise KernelFault(f"kernel {self.call.name} ends {complaint}")

    def _own(self, axes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Without the axes that `vmap` added, of which the kernel knows nothing."""
        return tuple(n for axis, n in enumerate(axes) if axis not in self.call.mapped)

    def _forget(self, stored: Sequence[OutputBlocks], scratch: Sequence[np.ndarray]) -> None:
        for blocks in stored:
            blocks.write_back()
        for memory, semaphores in zip(scratch, self.semaphores, strict=True):
            if not semaphores:
                memory[...] = poison((), memory.dtype)

    def _explained(self, fault: KernelFault, step: tuple[Any, ...]) -> str:
        origin = self.source.origin_of(fault)
        where = f", {jax_side.where(origin)}" if origin is not None else ""
        return f"kernel {self.call.name}, grid step {tuple(map(int, step))}{where}: {fault}"


def _steps(grid: Sequence[int], parallel: Sequence[bool]) -> Iterator[tuple[np.int32, ...]]:
    """The grid in order, last axis fastest, but with each parallel axis shuffled."""
    random = np.random.default_rng(_SHUFFLE_SEED)
    axes = []
    for size, shuffled in zip(grid, parallel, strict=True):
        order = np.arange(size, dtype=np.int32)
        if shuffled and size > 1:
            order = random.permutation(order)
            if np.all(order[:-1] < order[1:]):
                order = order[::-1]  # short axes often shuffle into the order they had
        axes.append(order)
    return product(*axes)


def _body(call: KernelCall, source: Source) -> Callable[..., Any]:
    names = [f"ref{number}" for number in range(len(call.kernel.inputs))]
    inputs = range(call.prefetched + len(call.inputs))
    changing = call.written | set(call.aliases)
    read_only = frozenset(names[n] for n in inputs if n not in changing)
    references = [
        Operand(name, tuple(variable.aval.shape), variable.aval.dtype)
        for name, variable in zip(names, call.kernel.inputs, strict=True)
    ]
    Writer(source, read_only=read_only).body(call.kernel, references)
    return source.function(f"kernel {call.name}", ["step", "grid", *names], [])


def _index_maps(call: KernelCall) -> Callable[..., Any]:
    """All index maps as one function, from a step and the prefetched scalars."""
    source = Source()
    writer = Writer(source, read_only=frozenset(f"p{n}" for n in range(call.prefetched)))
    steps = [Operand(f"s{axis}", (), _INT32) for axis in range(len(call.grid))]
    places = []
    for index_map in call.index_maps:
        scalars = [
            Operand(f"p{n}", tuple(variable.aval.shape), variable.aval.dtype)
            for n, variable in enumerate(index_map.inputs[len(steps) :])
        ]
        found = writer.body(index_map, [*steps, *scalars])
        places.append(f"({''.join(f'{index}, ' for index in found)})")
    parameters = [*map(str, steps), *(f"p{n}" for n in range(call.prefetched))]
    return source.function(f"index maps of {call.name}", parameters, places)
