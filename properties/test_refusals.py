"""Calls that break one rule of the contract are refused as it says; calls at its very edge are
accepted and right, in every engine and for every TPU."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases.case import Case
from properties.claims import refusal
from properties.drawing import breaking, strategies
from properties.drawing.breaking import edges
from properties.session.run import Run


@pytest.mark.parametrize("rule", breaking.BREAKERS)
@given(data=st.data())
def test_rule(run: Run, rule: str, data: st.DataObject) -> None:
    run.check("refusals", data.draw(strategies.refusal_cases(rule)))


@pytest.mark.parametrize("rule", refusal.TRANSFORMATIONS)
def test_transformation(run: Run, rule: str) -> None:
    run.check("refusals", Case(1, 1, 8, 8, 8, breaks=rule))


@pytest.mark.parametrize("shard", range(2))
@given(data=st.data())
def test_edge(run: Run, shard: int, data: st.DataObject) -> None:
    run.check("refusals", data.draw(strategies.edge_cases()))


# Each takes seconds, most of them in compilers.
@settings(max_examples=max(settings().max_examples // 10, 1))
@given(case=st.sampled_from(edges.SIZES), causal=st.booleans())
def test_edge_everywhere(run: Run, case: Case, causal: bool) -> None:
    parameters = {"everywhere": list(run.generations)}
    run.check("refusals", dataclasses.replace(case, causal=causal, parameters=parameters))
