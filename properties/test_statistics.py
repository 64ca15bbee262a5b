"""Errors on random data are no larger, and no more alike, than the declared roundings make them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from properties.drawing import strategies
from properties.session.run import Run

# Each case is an average over tens of thousands of errors: a few see what there is to be seen.
_CASES = max(settings().max_examples // 3, 2)


@settings(max_examples=_CASES)
@given(data=st.data())
def test_statistics(run: Run, data: st.DataObject) -> None:
    run.check("statistics", data.draw(strategies.statistical_cases(**run.target.restrictions)))
