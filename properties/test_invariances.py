"""What a call must not notice, or must follow exactly, it does not notice, and follows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.claims.invariances import drawing
from properties.claims.invariances.options import (
    DESIGNATED,
    LEFT_OUT_CASE,
    VALIDATED,
    VALIDATED_CASE,
)
from properties.session.run import Run

_SHARDS = 3

# Each case is put to every property it suits, a dozen of them: one trace serves most of them.
_CASES = max(settings().max_examples // 4, 1)


@pytest.mark.parametrize("shard", range(_SHARDS))
@settings(max_examples=_CASES)
@given(data=st.data())
def test_invariances(run: Run, shard: int, data: st.DataObject) -> None:
    case = data.draw(drawing.cases(**run.target.restrictions))
    for name in drawing.drawn_for(run.target):
        parameters = data.draw(drawing.parameters(name, case))
        if parameters is not None:
            run.check(name, replace(case, parameters=parameters))


@pytest.mark.parametrize("option", DESIGNATED)
def test_option_matters(run: Run, option: str) -> None:
    case = replace(DESIGNATED[option], dtype=run.target.dtypes[0], parameters={"without": option})
    run.check("invariances.option_matters", case)


@pytest.mark.parametrize("field", VALIDATED)
def test_block_field_matters(run: Run, field: str) -> None:
    case = replace(VALIDATED_CASE, dtype=run.target.dtypes[0], parameters={"field": field})
    run.check("invariances.block_field_matters", case)


def test_options_left_out(run: Run) -> None:
    case = replace(LEFT_OUT_CASE, dtype=run.target.dtypes[0])
    run.check("invariances.options_left_out", case)
