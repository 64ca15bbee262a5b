"""Calls use memory as a TPU's must be used, on a simulated TPU of two cores."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from properties.cases.case import Bias, Blocks, Case
from properties.claims.memory import COPIES, ORDERS
from properties.drawing import space
from properties.session.run import Run

# Each takes three seconds or more: the simulation compiles every kernel for every core.
_CASES = max(settings().max_examples // 20, 1)

# Every kernel has blocks that leave a tail, of batch rows and of queries, and several steps.
_PARTIAL = Case(
    *(3, 1, 20, 256, 8),
    causal=True,
    sm_scale=0.3,
    bias=Bias("bfloat16", "normal"),
    block_sizes=Blocks(16, 128, 128, 2, *(16, 128, 128, 8), *(128, 128, 16)),
)

_settings = st.fixed_dictionaries(
    {"copies": st.sampled_from(COPIES), "order": st.sampled_from(ORDERS)}
)


@settings(max_examples=_CASES)
@given(data=st.data(), parameters=_settings)
def test_memory(run: Run, data: st.DataObject, parameters: dict) -> None:
    # Memory is used by the tile: more of them show nothing new.
    of = space.Space(
        **run.target.restrictions,
        q_lengths=(24, 9, 40, 129),
        kv_lengths=(24, 256, 129, 1),
        head_dims=(8, 1, 129),
    )
    case = space.draw_case(lambda options: options[data.draw(st.integers(0, len(options) - 1))], of)
    run.check("memory", replace(case, parameters=parameters))


@settings(max_examples=max(_CASES // 2, 1))
@given(parameters=_settings)
def test_partial_blocks(run: Run, parameters: dict) -> None:
    claims = run.target.restrictions
    case = replace(
        _PARTIAL,
        dtype=claims["dtypes"][0],
        causal=claims["causal"],
        bias=_PARTIAL.bias if claims["bias"] else None,
        block_sizes=_PARTIAL.block_sizes if claims["block_sizes"] else None,
        parameters=parameters,
    )
    run.check("memory", case)
