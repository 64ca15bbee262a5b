"""Calls compile for TPUs where the contract says so, and are refused by the compiler where it says
that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases.case import DTYPES, Bias, Blocks, Case
from properties.claims.compilation import DESIGNATED, LEAST_MEMORY, PRECISIONS, TIGHT
from properties.drawing import space, strategies
from properties.session.run import Run

T = TypeVar("T")

# Each takes a second, most of it in compilers.
_CASES = max(settings().max_examples // 10, 1)
# Several seconds: where memory is large, default blocks have many tiles, each written out.
_LARGE_CASES = max(_CASES // 3, 1)

# From what is smaller than a tile to what has many, with and without a tail.
_LENGTHS = (1, 100, 128, 600, 1024, 2049, 4096, 8191, 8192)
_HEAD_DIMS = (1, 64, 80, 128, 192, 256, 512, 1000, 1024)


def _compiled_for(generations: Sequence[str], **parameters: Any) -> dict[str, Any]:
    return {"generations": list(generations), **parameters}


@settings(max_examples=_CASES)
@given(
    data=st.data(),
    forward=st.booleans(),
    x64=st.booleans(),
    precision=st.sampled_from(list(PRECISIONS)),
)
def test_drawn_case_compiles(
    run: Run, data: st.DataObject, forward: bool, x64: bool, precision: str
) -> None:
    claims, features = run.target.restrictions, run.target.features
    if forward or "gradients" not in features:
        case = data.draw(strategies.cases(**claims))
    else:
        bias_gradient = "bias_gradient" in features
        case = data.draw(strategies.gradient_cases(**claims, bias_gradient=bias_gradient))
    parameters = _compiled_for(run.generations, forward=forward, x64=x64, precision=precision)
    run.check("compilation", replace(case, parameters=dict(case.parameters) | parameters))


@st.composite
def _large_cases(draw: st.DrawFn, restrictions: dict[str, Any]) -> Case:
    """Any shape, with blocks that are chosen for the caller."""

    def choose(options: Sequence[T]) -> T:
        return options[draw(st.integers(0, len(options) - 1))]

    q_len, kv_len, batch = choose(_LENGTHS), choose(_LENGTHS), choose((1, 2))
    segments = bias = None
    if restrictions["segments"] and choose((False, True)):
        segments = space.draw_segments(choose, "one", q_len, kv_len, batch)
    if restrictions["bias"] and choose((False, True)):
        bias = Bias(choose(DTYPES), "normal")
    return Case(
        batch=batch,
        heads=choose((1, 2)),
        q_len=q_len,
        kv_len=kv_len,
        head_dim=choose(_HEAD_DIMS),
        dtype=choose(restrictions["dtypes"]),
        causal=choose((False, True)) if restrictions["causal"] else False,
        sm_scale=choose((1.0, 0.3)),
        bias=bias,
        segments=segments,
    )


@settings(max_examples=_LARGE_CASES)
@given(data=st.data())
def test_default_blocks_fit_any_shape(run: Run, data: st.DataObject) -> None:
    case = data.draw(_large_cases(run.target.restrictions))
    generation = data.draw(st.sampled_from(run.generations))
    run.check("compilation", replace(case, parameters=_compiled_for([generation])))


# The largest of all, the last, takes a compiler a quarter of a minute: the short profiles have its
# like in float32, for the TPU with the least memory, among the regressions.
@pytest.mark.parametrize("name", list(DESIGNATED)[: -1 if _CASES < 100 else None])
def test_designated_case_compiles(run: Run, name: str) -> None:
    case, precision = DESIGNATED[name]
    claims, generations = run.target.restrictions, list(run.generations)
    if case.q_len > 1000:
        # Large cases for one generation each, in turn.
        turn = list(DESIGNATED).index(name) % len(generations)
        generations = generations[turn : turn + 1]
    case = replace(
        case,
        causal=case.causal and claims["causal"],
        bias=case.bias if claims["bias"] else None,
        parameters=_compiled_for(generations, precision=precision),
    )
    run.check("compilation", case)


def _too_large(q_len: int, head_dim: int, *fields: str) -> Case:
    """A case that fits but for the blocks in `fields`, as tall as makes the compiler give up.

    Tall and narrow ones, since compilers look at memory after everything else: a square tile of as
    many bytes takes them ten times as long.
    """
    names = (
        *("block_q", "block_k_major", "block_k"),
        *("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv"),
        *("block_k_major_dq", "block_k_dq", "block_q_dq"),
    )
    sizes = dict.fromkeys(names, 128) | {"block_b": 1} | dict.fromkeys(fields, q_len)
    return Case(
        *(2, 1, q_len, 256, head_dim),
        bias=Bias("float32", "normal"),
        block_sizes=Blocks(**sizes),
        parameters={"too_large": list(fields)},
    )


@pytest.mark.parametrize("name", TIGHT)
def test_default_blocks_fit_little_memory(run: Run, name: str) -> None:
    case = TIGHT[name]
    bias = case.bias if run.target.restrictions["bias"] else None
    parameters = _compiled_for([LEAST_MEMORY]) | dict(case.parameters)
    run.check("compilation", replace(case, bias=bias, parameters=parameters))


# For the TPU with the least memory, which is exhausted soonest: what is judged is the name of the
# kernel, and that is the same for all.
_TOO_LARGE = {
    "forward": _too_large(4096, 256, "block_q"),
    "backward": _too_large(4096, 256, "block_q_major_dkv", "block_q_dkv"),
}


# One a kernel, and a run that visits little visits the one that fails fastest.
@pytest.mark.parametrize("kernel", list(_TOO_LARGE)[: 1 if _CASES < 100 else None])
def test_too_large_blocks_are_named(run: Run, kernel: str) -> None:
    case = _TOO_LARGE[kernel]
    parameters = _compiled_for([LEAST_MEMORY], **case.parameters)
    run.check("compilation", replace(case, parameters=parameters))
