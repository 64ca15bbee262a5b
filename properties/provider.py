"""A Hypothesis backend that draws every bounded integer uniformly.

Hypothesis by default prefers small numbers, repeats earlier draws and mutates them: good where a
case is cheap, wasteful where it costs the trace of a kernel.  Of 100 default draws of
`strategies.cases()` some 75 have different configurations, of 100 uniform ones all.  Shrinking, the
example database and seeds work as ever.

The harness's profiles use it: importing this module makes it known, and

    settings(backend=provider.UNIFORM)

selects it.  Hypothesis calls its interface for backends experimental; this harness's own tests
check what is relied on here.
"""

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

UNIFORM = "uniform"


class UniformProvider(HypothesisProvider):
    """Hypothesis's own provider, but for integers between two bounds."""

    # Each test case has a random stream of its own, so that seeds and replays are Hypothesis's own.
    lifetime = "test_case"

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        """Uniform in [min_value, max_value]; Hypothesis's own draw where a bound is missing."""
        if min_value is None or max_value is None or weights is not None:
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        assert self._random is not None
        return self._random.randint(min_value, max_value)


AVAILABLE_PROVIDERS[UNIFORM] = f"{__name__}.{UniformProvider.__name__}"
