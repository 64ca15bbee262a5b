"""A Hypothesis backend that draws every bounded integer uniformly, or as a guide says.

Hypothesis by default prefers small numbers, repeats earlier draws and mutates them: good where a
case is cheap, wasteful where it costs the trace of a kernel.  Of 100 default draws of
`strategies.cases()` some 75 have different configurations, of 100 uniform ones all.  Shrinking, the
example database and seeds work as ever.

The harness's profiles use it: importing this module makes it known, and

    settings(backend=provider.UNIFORM)

selects it.  Hypothesis calls its interface for backends experimental; this harness's own tests
check what is relied on here.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

UNIFORM = "uniform"

Guide = Callable[[random.Random], Sequence[int]]
"""Gives the first integers that the next test case draws; all it decides by chance, it decides by
the random numbers it is given."""

_guides: list[Guide] = []


@contextmanager
def guided(guide: Guide) -> Iterator[None]:
    """While in the `with` block, test cases begin with what `guide` says.

    Only those that Hypothesis generates: replays and shrinking are its own affair.
    """
    _guides.append(guide)
    try:
        yield
    finally:
        _guides.pop()


class UniformProvider(HypothesisProvider):
    """Hypothesis's own provider, but for integers between two bounds."""

    # Each test case has a provider of its own; the random stream is that of Hypothesis's run, so
    # that seeds and replays are Hypothesis's own.
    lifetime = "test_case"

    def __init__(self, conjecturedata: ConjectureData | None, /) -> None:
        super().__init__(conjecturedata)
        self._planned: Iterator[int] | None = None

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """What the guide says; else uniform in [min_value, max_value], and Hypothesis's own draw
        where a bound is missing or numbers are weighted.

        Raises ValueError if the guide says a number out of bounds: it is one for another strategy.
        """
        assert self._random is not None
        if self._planned is None:
            self._planned = iter(_guides[-1](self._random) if _guides else ())
        planned = next(self._planned, None)
        if planned is not None:
            low = planned if min_value is None else min_value
            high = planned if max_value is None else max_value
            if not low <= planned <= high:
                raise ValueError(
                    f"the guide gives {planned} for an integer from {min_value} to {max_value}; "
                    "guide a test by the choices of its own strategy"
                )
            return planned
        if min_value is None or max_value is None or weights is not None:
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        return self._random.randint(min_value, max_value)


AVAILABLE_PROVIDERS[UNIFORM] = f"{__name__}.{UniformProvider.__name__}"
