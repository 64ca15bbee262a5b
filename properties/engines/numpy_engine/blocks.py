"""The block buffers between main memory and a kernel.

As on a TPU: an input block is fetched, an output block is written back when the index map moves
on, and never fetched. What no index map covers, and what hangs over an array's edge, is poison; of
integers it is what stands at the edge, since an id that is nobody's would be no danger.
"""

from typing import Any

import numpy as np

from properties.engines.errors import KernelFault
from properties.engines.numpy_engine.arithmetic import poison
from properties.engines.numpy_engine.jax_internals import Window


class Blocks:
    """One operand of a kernel: the array in main memory, seen block by block."""

    def __init__(self, window: Window, array: np.ndarray) -> None:
        self.window = window
        self.array = array
        self.lengths = tuple(1 if length is None else length for length in window.blocks)
        # Squeezed dimensions are there in main memory and gone in the kernel.
        self.squeeze = (*(0 if n is None else slice(None) for n in window.blocks), ...)
        self._held: tuple[Any, ...] | None = None
        self._block: np.ndarray = array
        self._index: tuple[Any, ...] | None = None
        self._place: tuple[Any, ...] = ()

    def place(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """Where the block at `index` lies in the array, cut at the array's edge.

        Raises KernelFault if none of it does.
        """
        if index != self._index:
            self._index, self._place = index, self._found(index)
        return self._place

    def _found(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        place: list[Any] = []
        for number, length, extent, elements in zip(
            index, self.lengths, self.window.shape, self.window.element, strict=True
        ):
            start = int(number) if elements else int(number) * length
            if not 0 <= start < extent:
                raise KernelFault(
                    f"the index map of {self.window.name} gives block "
                    f"{tuple(map(int, index))} of {self.lengths}, which is outside the array "
                    f"{self.window.shape}"
                )
            place.append(slice(start, min(start + length, extent)))
        # The ellipsis keeps even a single element a view.
        return (*place, ...)

    def at(self, index: tuple[Any, ...]) -> np.ndarray:
        """The block at `index`, as the kernel sees it."""
        raise NotImplementedError


class InputBlocks(Blocks):
    """Blocks that are fetched.

    Args:
      private: the kernel writes into its block. It gets a copy, which stays while the block does.
    """

    def __init__(self, window: Window, array: np.ndarray, private: bool) -> None:
        super().__init__(window, array)
        self.private = private

    def at(self, index: tuple[Any, ...]) -> np.ndarray:
        if self.window.whole:
            return self.array
        place = self.place(index)
        if not self.private or place != self._held:
            self._held, self._block = place, self._fetched(self.array[place])
        return self._block[self.squeeze]

    def _fetched(self, part: np.ndarray) -> np.ndarray:
        if part.shape != self.lengths:
            if np.issubdtype(part.dtype, np.integer):
                missing = zip(self.lengths, part.shape, strict=True)
                return np.pad(part, [(0, length - there) for length, there in missing], "edge")
            block = poison(self.lengths, self.window.dtype)
            block[tuple(map(slice, part.shape))] = part
            return block
        return part.copy() if self.private else part


class OutputBlocks(Blocks):
    """Blocks that are written back, whole, when another takes their place."""

    def at(self, index: tuple[Any, ...]) -> np.ndarray:
        if self.window.whole:
            return self.array
        place = self.place(index)
        if place != self._held:
            self.write_back()
            self._held, self._block = place, poison(self.lengths, self.window.dtype)
        return self._block[self.squeeze]

    def write_back(self) -> None:
        """Stores the present block, and forgets it."""
        if self._held is not None:
            target = self.array[self._held]
            target[...] = self._block[tuple(map(slice, target.shape))]
            self._held = None
