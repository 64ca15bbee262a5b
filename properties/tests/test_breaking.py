"""Every way to break a rule breaks that rule and no other; every edge is accepted."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from oracle import contract
from properties.cases.case import BACKWARD_BLOCKS, Case, CaseError
from properties.drawing import breaking, space
from properties.drawing.breaking import edges
from properties.drawing.breaking.edges import Indexable

PLAIN = Case(2, 1, 24, 128, 8, seed=3)


def refusal(case: Case) -> contract.Refusal | None:
    arguments, blocks = breaking.call(case)
    if blocks is not None:
        refused = contract.block_sizes_refusal(blocks)
        if refused is not None:
            return refused
        absent = dict.fromkeys(BACKWARD_BLOCKS)
        arguments["block_sizes"] = SimpleNamespace(**{**absent, **blocks})
    return contract.call_refusal(**arguments, differentiated="gradient_of" in case.parameters)


def test_every_rule_on_arguments_can_be_broken() -> None:
    assert set(breaking.BREAKERS) == set(contract.RULES) - {"second_order", "forward_mode"}


@pytest.mark.parametrize("rule", breaking.BREAKERS)
def test_every_way_breaks_exactly_its_rule(rule: str) -> None:
    breaker = breaking.BREAKERS[rule]
    chosen = random.Random(0)
    for q_len in breaker.q_lengths:
        for kv_len in breaker.kv_lengths:
            of = space.Space(q_lengths=(q_len,), kv_lengths=(kv_len,), head_dims=(1, 8))
            case = space.draw_case(chosen.choice, of)
            ways = list(breaker.ways(case))
            assert ways, f"no way at q_len={q_len}, kv_len={kv_len}"
            for parameters in chosen.sample(ways, min(5, len(ways))):
                broken = replace(case, breaks=rule, parameters=parameters)
                refused = refusal(broken)
                assert refused is not None, broken
                assert refused.rule == rule, broken
                assert Case.from_json(broken.to_json()) == broken


@pytest.mark.parametrize("rule", breaking.BREAKERS)
def test_ways_are_many_and_differ(rule: str) -> None:
    case = replace(PLAIN, kv_len=384)
    ways = [str(way) for way in breaking.BREAKERS[rule].ways(case)]

    assert len(ways) >= 3
    assert len(ways) == len(set(ways))


@pytest.mark.parametrize("field", ["causal", "debug"])
def test_flags_that_python_takes_for_true_are_not_bool(field: str) -> None:
    broken = replace(
        PLAIN, breaks="flag_type", parameters={"argument": field, "value": "np.array(True)"}
    )
    arguments, _ = breaking.call(broken)
    assert isinstance(arguments[field], np.ndarray)


def test_an_unbroken_case_is_passed_as_it_is() -> None:
    case = Case.from_json(
        replace(PLAIN, causal=True, sm_scale=0.5).to_json().replace('"seed": 3', '"seed": 4')
    )
    arguments, blocks = breaking.call(case)
    arrays = case.arrays()

    assert blocks is None
    assert np.array_equal(arguments["q"], arrays.q)
    assert (arguments["ab"], arguments["segment_ids"]) == (None, None)
    assert (arguments["causal"], arguments["sm_scale"], arguments["debug"]) == (True, 0.5, False)


def test_block_sizes_of_a_wrong_type_are_an_argument() -> None:
    broken = replace(PLAIN, breaks="block_sizes_type", parameters={"value": "{}"})
    arguments, blocks = breaking.call(broken)

    assert blocks is None
    assert arguments["block_sizes"] == {}


@pytest.mark.parametrize("edge", edges.FORMS)
def test_forms_are_accepted_and_keep_the_value(edge: str) -> None:
    for form in edges.FORMS[edge]:
        case = replace(PLAIN, parameters={"edge": edge, "form": form})
        assert refusal(case) is None, form
        arguments, blocks = breaking.call(case)
        if edge == "block_sizes":
            assert blocks is not None
            assert {type(size) for size in blocks.values()} <= {
                Indexable,
                *(np.dtype(name).type for name in ("int64", "int32", "uint16")),
            }
            assert blocks["block_q"].__index__() == case.q_len
        else:
            plain, _ = breaking.call(PLAIN)
            assert arguments[edge] == plain[edge]
            assert type(arguments[edge]) is not type(plain[edge])


@pytest.mark.parametrize("number", range(len(edges.SIZES)))
def test_sizes_are_accepted(number: int) -> None:
    case = edges.SIZES[number]
    assert refusal(case) is None
    if case.block_sizes is not None and case.block_sizes.backward:
        assert refusal(replace(case, parameters={"gradient_of": ["q"]})) is None
    assert Case.from_json(case.to_json()) == case


@pytest.mark.parametrize(
    ("breaks", "parameters", "message"),
    [
        ("rank", {}, "parameters: missing a required argument: 'argument'"),
        ("scale_type", {"value": "1.0", "x": 1}, "parameters: got an unexpected keyword argument"),
        ("scale_type", {"value": "exit()"}, "parameters: 'exit\\(\\)' names no value; known: None"),
        ("bias_dtype", {"dtype": "float7"}, "parameters: 'float7' names no dtype"),
        ("block_type", {"field": "block_x", "value": "8.0"}, "parameters.field: 'block_x' is no"),
        ("segments_type", {"form": "ring"}, "parameters.form: 'ring' is none of tuple"),
        ("forward_mode", {}, "breaks: forward_mode is not broken by the arguments"),
        (None, {"edge": "causal", "form": "int"}, "parameters: edge 'causal' has no form 'int'"),
    ],
)
def test_parameters_that_say_nothing_are_refused(breaks, parameters, message: str) -> None:
    with pytest.raises(CaseError, match=f"^{message}"):
        breaking.call(replace(PLAIN, breaks=breaks, parameters=parameters))
