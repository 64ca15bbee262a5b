"""How a kernel's reads and writes of memory are written in NumPy.

A reference is an array or a view of one. Reading copies, since a later write must not change what
was read; writing assigns into the view.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine import indexing, memory
from properties.engines.numpy_engine import jax_internals as jax_side
from properties.engines.numpy_engine.arithmetic import poison
from properties.engines.numpy_engine.jax_internals import Span, View
from properties.engines.numpy_engine.operations import expression
from properties.engines.numpy_engine.rules import Operand
from properties.engines.numpy_engine.source import Source


def allocated(source: Source, variables: list[Any]) -> list[Operand]:
    """Writes the allocation of scratch memory for the references `variables`."""
    found = []
    for variable in variables:
        make = source.name(memory.allocate(variable.aval))
        found += source.assign([variable.aval], f"{make}()")
    return found


class Access:
    """One equation that reads or writes memory."""

    def __init__(
        self, source: Source, read_only: frozenset[str], params: dict, operands: list[Operand]
    ) -> None:
        self.source = source
        self.read_only = read_only
        self.params = params
        self.operands = operands

    def get(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, _ = jax_side.access(self.params, self.operands)
        return self.source.assign(avals, self._read(view))

    def swap(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, (value,) = jax_side.access(self.params, self.operands)
        return self._exchange(view, value.code, avals, wanted)

    def addupdate(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, (value,) = jax_side.access(self.params, self.operands)
        old = Operand(self._place(view), value.shape, value.dtype)
        self.source.line(f"{old} = {expression('add', self.source, {}, value, [old, value])}")
        return []

    def masked_load(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, mask, other = jax_side.masked_access(self.params, self.operands)
        if mask is None:
            return self.source.assign(avals, self._read(view))
        fill = other or self.source.constant(poison((), np.dtype(avals[0].dtype))[()])
        return self.source.assign(avals, f"np.where({mask}, {self._place(view)}, {fill})")

    def masked_swap(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, value, mask = jax_side.masked_access(self.params, self.operands)
        new = value.code if mask is None else f"np.where({mask}, {value}, {self._place(view)})"
        return self._exchange(view, new, avals, wanted)

    def dma_start(self, avals: list, wanted: list[bool]) -> list[Operand]:
        return self._copy(memory.start_copy)

    def dma_wait(self, avals: list, wanted: list[bool]) -> list[Operand]:
        return self._copy(memory.await_copy)

    def semaphore_signal(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, (amount, *other) = jax_side.semaphore_access(self.params, self.operands)
        if any(each is not None for each in other):
            raise Unsupported("a signal to another device or core")
        self.source.line(f"{self.source.name(memory.signal)}({self._place(view)}, {amount})")
        return []

    def semaphore_wait(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, (amount, taking) = jax_side.semaphore_access(self.params, self.operands)
        if taking.constant is None or not taking.constant:
            raise Unsupported("a wait that leaves its semaphore as it is")
        self.source.line(f"{self.source.name(memory.wait)}({self._place(view)}, {amount})")
        return []

    def semaphore_read(self, avals: list, wanted: list[bool]) -> list[Operand]:
        view, _ = jax_side.semaphore_access(self.params, self.operands)
        return self.source.assign(avals, f"np.int32({self._place(view)}[()].count)")

    def _exchange(self, view: View, new: str, avals: list, wanted: list[bool]) -> list[Operand]:
        old = self.source.results(avals)
        if wanted[0]:
            self.source.line(f"{old[0]} = {self._place(view)}.copy()")
        self.source.line(f"{self._place(view)} = {new}")
        return old

    def _copy(self, action: Callable[..., None]) -> list[Operand]:
        views = jax_side.copy_access(self.params, self.operands)
        places = ", ".join(self._place(view) for view in views)
        self.source.line(f"{self.source.name(action)}({places})")
        return []

    def _read(self, view: View) -> str:
        place = self._place(view)
        return place if view.reference.code in self.read_only else f"{place}.copy()"

    def _place(self, view: View) -> str:
        """The source of the NumPy view that `view` means; assigning to it writes."""
        code, shape = view.reference.code, tuple(view.reference.shape)
        for step in view.steps:
            match step:
                case ("reshape", new):
                    shape = tuple(new)
                    code = f"{code}.reshape({shape}, copy=False)"
                case ("transpose", order):
                    shape = tuple(shape[axis] for axis in order)
                    code = f"{code}.transpose({tuple(order)})"
                case ("bitcast", _):
                    raise Unsupported("a reference seen as another dtype")
                case _:
                    # The ellipsis keeps even a single element a view that can be assigned to.
                    parts = [self._index(*pair) for pair in zip(step, shape, strict=True)]
                    shape = tuple(index.size for index in step if isinstance(index, Span))
                    code = f"{code}[{', '.join([*parts, '...'])}]"
        return code if code.endswith("]") else f"{code}[...]"

    def _index(self, index: Any, extent: int) -> str:
        if not isinstance(index, Span):
            known = _known(index)
            if known is not None and 0 <= known < extent:
                return str(known)
            return f"{self.source.name(indexing.element)}({index}, {extent})"
        start = _known(index.start)
        if start is not None:
            stop = start + (index.size - 1) * index.stride + 1
            if (start, stop, index.stride) == (0, extent, 1):
                return ":"
            if 0 <= start <= stop <= extent:
                return f"{start}:{stop}:{index.stride}"
        slicer = self.source.name(indexing.span)
        return f"{slicer}({index.start}, {index.size}, {extent}, {index.stride})"


def _known(index: Any) -> int | None:
    if isinstance(index, Operand):
        return None if index.constant is None else int(index.constant)
    return int(index)


RULES: dict[str, Callable[[Access, list, list[bool]], list[Operand]]] = {
    "get": Access.get,
    "swap": Access.swap,
    "addupdate": Access.addupdate,
    "masked_load": Access.masked_load,
    "masked_swap": Access.masked_swap,
    "dma_start": Access.dma_start,
    "dma_wait": Access.dma_wait,
    "semaphore_signal": Access.semaphore_signal,
    "semaphore_wait": Access.semaphore_wait,
    "semaphore_read": Access.semaphore_read,
}
