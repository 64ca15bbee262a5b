"""Every gradient is right to within its bound, whichever of q, k, v and ab are differentiated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawing import strategies
from properties.session.run import Run


@pytest.mark.covering("gradients", shards=8)
@pytest.mark.parametrize("shard", range(8))
@given(data=st.data())
def test_gradients(run: Run, shard: int, data: st.DataObject) -> None:
    drawn = strategies.gradient_cases(
        **run.target.restrictions, bias_gradient="bias_gradient" in run.target.features
    )
    run.explore("gradients", data.draw(drawn))
