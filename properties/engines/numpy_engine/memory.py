"""A kernel's memory in the NumPy engine: scratch, semaphores, and copies that take time."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from properties.engines.errors import KernelFault
from properties.engines.numpy_engine import jax_internals as jax_side
from properties.engines.numpy_engine.arithmetic import poison

# An array, or a view of one, that holds a single Semaphore.
Reference = Any


class Semaphore:
    """A counter, and for copies the queue of those that signal it."""

    def __init__(self) -> None:
        self.count = 0
        self.copies: deque[tuple[np.ndarray, np.ndarray]] = deque()


def allocate(aval: Any) -> Callable[[], np.ndarray]:
    """What makes fresh memory for a reference: poison, or semaphores at zero."""
    if jax_side.is_semaphore(aval):
        return partial(_semaphores, tuple(aval.shape))
    return partial(poison, tuple(aval.shape), np.dtype(aval.dtype))


def _semaphores(shape: tuple[int, ...]) -> np.ndarray:
    memory = np.empty(shape, object)
    for index in np.ndindex(shape):
        memory[index] = Semaphore()
    return memory


def start_copy(source: np.ndarray, target: np.ndarray, semaphore: Reference) -> None:
    """Starts a copy. Until it is awaited the target holds poison: nothing may be read there."""
    target[...] = poison(target.shape, target.dtype)
    semaphore[()].copies.append((source, target))


def await_copy(source: np.ndarray, target: np.ndarray, semaphore: Reference) -> None:
    """Waits until as many bytes as `target` holds have arrived; KernelFault if none are coming."""
    missing = target.nbytes
    while missing > 0:
        if not semaphore[()].copies:
            raise KernelFault("waits for a copy that was never started")
        arriving, place = semaphore[()].copies.popleft()
        place[...] = arriving
        missing -= place.nbytes


def signal(semaphore: Reference, amount: Any) -> None:
    """Adds to a semaphore."""
    semaphore[()].count += int(amount)


def wait(semaphore: Reference, amount: Any) -> None:
    """Takes from a semaphore; KernelFault if that would wait for ever."""
    if semaphore[()].count < amount:
        raise KernelFault(f"waits for {amount} on a semaphore that stays {semaphore[()].count}")
    semaphore[()].count -= int(amount)


def unsettled(memory: Reference) -> str | None:
    """What is wrong with the semaphores at a kernel's end, None if nothing is."""
    for semaphore in memory.ravel():
        if semaphore.copies:
            return f"with {len(semaphore.copies)} copies never awaited"
        if semaphore.count:
            return f"with a semaphore at {semaphore.count}, not at 0"
    return None
