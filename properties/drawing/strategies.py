"""Hypothesis strategies for attention calls: public, for tests of any kernel.

    from hypothesis import given
    from properties.drawing import strategies

    @given(strategies.cases(segments=False))
    def test_attention(case):
        arrays = case.arrays()
        ...

What is drawn is a `Case`: a few small integers and names, never an array.  Every draw is an index
into options ordered simplest first (see `space`), nothing is filtered, so that Hypothesis's
shrinker takes a failure to its least form in a few dozen calls.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

from hypothesis import strategies as st

from properties.cases.case import DTYPES, Case
from properties.drawing import breaking, designated
from properties.drawing.breaking import edges
from properties.drawing.space import Choose, Space, draw_case

T = TypeVar("T")


def _chooser(draw: st.DrawFn) -> Choose:
    def choose(options: Sequence[T]) -> T:
        return options[draw(st.integers(0, len(options) - 1))]

    return choose


@st.composite
def _cases(draw: st.DrawFn, space: Space) -> Case:
    return draw_case(_chooser(draw), space)


def cases(
    *,
    dtypes: Sequence[str] = DTYPES,
    causal: bool = True,
    bias: bool = True,
    segments: bool = True,
    block_sizes: bool = True,
) -> st.SearchStrategy[Case]:
    """Legal calls: every feature that is not switched off, alone and together.

    dtypes: of q, k and v.  causal, bias, segments, block_sizes: False where the function under test
    does not have the feature; with block_sizes=False every case has None.  Explicit blocks cover
    the forward alone or both passes.  Raises ValueError for a dtype that no case can have.
    """
    return _cases(Space(tuple(dtypes), causal, bias, segments, block_sizes))


def gradient_cases(
    *,
    dtypes: Sequence[str] = DTYPES,
    causal: bool = True,
    bias: bool = True,
    bias_gradient: bool = True,
    segments: bool = True,
    block_sizes: bool = True,
) -> st.SearchStrategy[Case]:
    """Legal calls to differentiate: explicit blocks, where there are any, cover both passes.

    `parameters["gradient_of"]` lists what to differentiate by: a non-empty subset of q, k, v and,
    in a case with a bias and unless bias_gradient is False, ab.  Otherwise as `cases`.
    """
    space = Space(tuple(dtypes), causal, bias, segments, block_sizes, backward=True)
    return _gradient_cases(space, bias_gradient)


@st.composite
def _gradient_cases(draw: st.DrawFn, space: Space, bias_gradient: bool) -> Case:
    choose = _chooser(draw)
    case = draw_case(choose, space)
    names = ("q", "k", "v", "ab") if case.bias is not None and bias_gradient else ("q", "k", "v")
    return replace(case, parameters={"gradient_of": list(choose(_subsets(names)))})


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The non-empty subsets, small ones first."""
    return [subset for size in range(len(names)) for subset in combinations(names, size + 1)]


def statistical_cases(
    *,
    dtypes: Sequence[str] = DTYPES,
    causal: bool = True,
    bias: bool = True,
    segments: bool = True,
    block_sizes: bool = True,
) -> st.SearchStrategy[Case]:
    """Calls whose errors can be judged together: random data, some 30,000 numbers an output.

    Explicit blocks cover both passes. Otherwise as `cases`.
    """
    return _statistical_cases(Space(tuple(dtypes), causal, bias, segments, block_sizes))


@st.composite
def _statistical_cases(draw: st.DrawFn, space: Space) -> Case:
    return designated.draw(_chooser(draw), space)


def refusal_cases(rule: str | None = None) -> st.SearchStrategy[Case]:
    """Calls that break exactly one rule of the contract, and must be refused.

    rule: one of `breaking.BREAKERS`, or None for any of them.  The case has it in `breaks`, how it
    is broken in `parameters`; `breaking.call` gives the arguments.  Raises ValueError for a rule
    that no argument of a call breaks.
    """
    if rule is not None and rule not in breaking.BREAKERS:
        raise ValueError(f"rule={rule!r}: expected one of {', '.join(breaking.BREAKERS)}")
    return _refusal_cases(list(breaking.BREAKERS) if rule is None else [rule])


@st.composite
def _refusal_cases(draw: st.DrawFn, rules: Sequence[str]) -> Case:
    choose = _chooser(draw)
    rule = choose(rules)
    breaker = breaking.BREAKERS[rule]
    space = Space(q_lengths=breaker.q_lengths, kv_lengths=breaker.kv_lengths, head_dims=(8, 1))
    case = draw_case(choose, space)
    ways = list(breaker.ways(case))
    return replace(case, breaks=rule, parameters=choose(ways))


@st.composite
def edge_cases(draw: st.DrawFn) -> Case:
    """Calls at the very edge of the contract, which must be accepted, and be right.

    Either a case of `edges.SIZES`, or any small case one of whose arguments is passed in an unusual
    form, named in `parameters`; `breaking.call` gives the arguments of both.
    """
    choose = _chooser(draw)
    if choose(("sizes", "form")) == "sizes":
        case = choose(edges.SIZES)
        return replace(case, dtype=choose(DTYPES), causal=choose((False, True)))
    edge, form = choose([(edge, form) for edge, forms in edges.FORMS.items() for form in forms])
    space = Space(q_lengths=(1, 2, 9, 24), kv_lengths=(1, 8, 128, 256), head_dims=(8, 1))
    case = draw_case(choose, space)
    if edge == "sm_scale":
        case = replace(case, sm_scale=choose(edges.FORM_SCALES), bias=None)
    return replace(case, parameters={"edge": edge, "form": form})
