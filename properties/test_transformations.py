"""A call gives the same under every transformation of jax."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases.case import Case
from properties.claims.transformations import drawing
from properties.session.run import Run

# Each case is put through every variant, up to 16 of them.
_CASES = max(settings().max_examples // 13, 1)


@pytest.mark.parametrize("name", drawing.DRAWN)
@settings(max_examples=_CASES)
@given(data=st.data())
def test_transformation(run: Run, name: str, data: st.DataObject) -> None:
    case = data.draw(drawing.cases(**run.target.restrictions))
    for parameters in drawing.variants(name, case):
        run.check(name, replace(case, parameters=parameters))


# These take a second or more, in compilers and in another process.
@pytest.mark.parametrize("name", drawing.DESIGNATED)
def test_designated(run: Run, name: str) -> None:
    causal = "causal" in run.target.features
    case = Case(2, 2, 128, 128, 8, run.target.dtypes[0], causal, sm_scale=0.5)
    for parameters in drawing.variants(name, case):
        run.check(name, replace(case, parameters=parameters))
