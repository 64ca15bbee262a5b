"""Where the seconds go: a running total per stage of getting a result."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGE_NAMES = ("trace", "lower", "compile", "run")


class Stages:
    """Seconds of wall-clock time spent so far in each stage, over all programs of this process.

    "trace" is Python to jaxpr; "lower" is jaxpr to the compiler's input, or to NumPy source;
    "compile" is what the compiler (XLA, Mosaic, or Python's own) does with it; "run" is execution.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(STAGE_NAMES, 0.0)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the time spent inside the `with` block to `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    def snapshot(self) -> dict[str, float]:
        """A copy of the totals; subtract two snapshots to get the cost of what lies between."""
        return dict(self._seconds)


STAGES = Stages()
