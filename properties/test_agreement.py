"""A sample of cases, as gradients draws them, is right in the NumPy engine if and only if it is in
Pallas's interpreter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.drawing import strategies
from properties.session.run import Run

_SHARDS = 2

# The interpreter takes ten times as long. With the further data of each this is one case in forty
# of what the NumPy engine runs in a whole run, and in the shortest of runs a dozen.
_CASES = max(settings().max_examples // 10, 2)


@pytest.mark.parametrize("shard", range(_SHARDS))
@settings(max_examples=_CASES)
@given(data=st.data())
def test_engines_agree(run: Run, shard: int, data: st.DataObject) -> None:
    drawn = strategies.gradient_cases(
        **run.target.restrictions, bias_gradient="bias_gradient" in run.target.features
    )
    run.explore("engines", data.draw(drawn))
