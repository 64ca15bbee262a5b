"""o, and l and m where they can be read, are right to within the bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawing import strategies
from properties.session.run import Run


# Several tests of the same property: a single one would not be divided between workers.
@pytest.mark.covering("outputs", shards=4)
@pytest.mark.parametrize("shard", range(4))
@given(data=st.data())
def test_outputs(run: Run, shard: int, data: st.DataObject) -> None:
    run.explore("outputs", data.draw(strategies.cases(**run.target.restrictions)))
