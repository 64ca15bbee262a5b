"""Each invariance holds for the kernel, and fails for a kernel with the fault that it is meant for.

Faults are planted around the kernel, most of them so small that few other tests would notice.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel
from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.claims import checks
from properties.claims.invariances import drawing
from properties.claims.invariances.options import DESIGNATED, VALIDATED, VALIDATED_CASE
from properties.judging.targets import Target

KERNEL = Target.load("kernel:flash_attention")
TINY = 2.0**-20

# The second segment of the keys is seen by no query.
SEGMENTS = Segments("int32", (((0, 10), (2, 14)),), (((0, 8), (1, 6), (2, 10)),))
PLAIN = Case(2, 2, 24, 24, 8, sm_scale=0.5, bias=Bias("float32", "normal"))
BLOCKS = Blocks(24, 24, 24, 1, *(24, 24, 24, 24), *(24, 24, 24))
MASKED = replace(
    PLAIN,
    causal=True,
    block_sizes=BLOCKS,
    segments=replace(SEGMENTS, q=SEGMENTS.q * 2, kv=SEGMENTS.kv * 2),
)

Attend = Callable[..., Any]


def leaks_values(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
    """Every row gets a trace of all values."""
    return kernel.flash_attention(q, k, v, *rest, **options) + TINY * v.mean(2, keepdims=True)


def leaks_keys_into_dk(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
    """dk gets a trace of all keys; no row's own results do."""
    leaking = _backward(lambda g, k: g + TINY**2 * k.mean(2, keepdims=True))
    return kernel.flash_attention(q, leaking(k), v, *rest, **options)


def sees_its_padding(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
    """The values' padding is a part of every row's mean."""
    padded = jnp.pad(v, [(0, 0), (0, 0), (0, 8), (0, 0)])
    o = kernel.flash_attention(q, k, v, *rest, **options)
    return o + TINY * padded.mean(2, keepdims=True)


def adds_zero_times_bias(*args: Any, **options: Any) -> Any:
    return kernel.flash_attention(*args, **options) + 0 * args[3].sum(3, keepdims=True)


def depends_on_batch_position(*args: Any, **options: Any) -> Any:
    o = kernel.flash_attention(*args, **options)
    return o * (1 + TINY * jnp.arange(o.shape[0])[:, None, None, None])


def mixes_heads(*args: Any, **options: Any) -> Any:
    """The last head gets a trace of the first."""
    o = kernel.flash_attention(*args, **options)
    last = jnp.arange(o.shape[1])[:, None, None] == o.shape[1] - 1
    return o + jnp.where(last, TINY * o[:, :1], 0)


def mixes_batch(*args: Any, **options: Any) -> Any:
    """All rows of the batch alike get a trace of all."""
    o = kernel.flash_attention(*args, **options)
    return o + TINY * o.mean(0, keepdims=True)


def depends_on_batch_size(*args: Any, **options: Any) -> Any:
    o = kernel.flash_attention(*args, **options)
    return o * (1 + TINY * o.shape[0])


def takes_0_for_padding(q: Any, k: Any, v: Any, ab: Any, ids: Any, **options: Any) -> Any:
    o = kernel.flash_attention(q, k, v, ab, ids, **options)
    return jnp.where((ids.q == 0)[:, None, :, None], 0, o)


def adds_an_epsilon(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
    return kernel.flash_attention(q, k, v + TINY, *rest, **options)


_counter = itertools.count()


def counts_calls(q: Any, *args: Any, **options: Any) -> Any:
    return kernel.flash_attention(q * (1 + TINY * next(_counter)), *args, **options)


def forgets_its_last_block(q: Any, k: Any, *rest: Any, **options: Any) -> Any:
    """With blocks of less than all queries, the last row is off."""
    o = kernel.flash_attention(q, k, *rest, **options)
    blocks = options["block_sizes"]
    whole = blocks is None or blocks.block_q == q.shape[2]
    return o if whole else jnp.where((jnp.arange(q.shape[2]) == 23)[:, None], 0.9 * o, o)


def ignores_segments(q: Any, k: Any, v: Any, ab: Any, ids: Any, **options: Any) -> Any:
    return kernel.flash_attention(q, k, v, ab, None, **options)


def ignores_causal_order(*args: Any, **options: Any) -> Any:
    return kernel.flash_attention(*args, **(options | {"causal": False}))


def ignores_bias(q: Any, k: Any, v: Any, ab: Any, ids: Any, **options: Any) -> Any:
    nothing = 0 if ab is None else 0 * ab.sum(3, keepdims=True)
    return kernel.flash_attention(q, k, v, None, ids, **options) + nothing


def ignores_scale(*args: Any, **options: Any) -> Any:
    return kernel.flash_attention(*args, **(options | {"sm_scale": 1.0}))


def sums_to_more_than_1(*args: Any, **options: Any) -> Any:
    return kernel.flash_attention(*args, **options) * 1.001


def clips_bias(q: Any, k: Any, v: Any, ab: Any, *rest: Any, **options: Any) -> Any:
    return kernel.flash_attention(q, k, v, jnp.clip(ab, -2, 2), *rest, **options)


def loses_some_dv(q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
    losing = _backward(lambda g, _: 0.99 * g)
    return kernel.flash_attention(q, k, losing(v), *rest, **options)


def shifts_dab(q: Any, k: Any, v: Any, ab: Any, *rest: Any, **options: Any) -> Any:
    shifting = _backward(lambda g, _: g + 1e-3)
    return kernel.flash_attention(q, k, v, shifting(ab), *rest, **options)


def forgets_the_scale_of_dab(*args: Any, **options: Any) -> Any:
    q, k, v, ab, *rest = args
    unscaled = _backward(lambda g, _: g / options["sm_scale"])
    return kernel.flash_attention(q, k, v, unscaled(ab), *rest, **options)


def clips_cotangents(*args: Any, **options: Any) -> Any:
    clipping = _backward(lambda g, _: jnp.clip(g, -1, 1))
    return kernel.flash_attention(*(clipping(x) for x in args[:3]), *args[3:], **options)


def _backward(change: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The identity, whose derivative is `change` of the cotangent and the primal."""
    identity = jax.custom_vjp(lambda x: x)
    identity.defvjp(lambda x: (x, x), lambda x, g: (change(g, x),))
    return identity


# Property: the fault that it is meant for, and a case and parameters that show it.
FAULTS: list[tuple[str, Attend, Case, dict[str, Any]]] = [
    ("hidden_keys", leaks_values, MASKED, {"row": 0, "replacement": "other"}),
    (
        "hidden_keys",
        ignores_causal_order,
        replace(PLAIN, causal=True),
        {"row": 3, "replacement": "zero"},
    ),
    ("unseen_keys", leaks_keys_into_dk, MASKED, {"replacement": "huge"}),
    ("padding", sees_its_padding, MASKED, {}),
    ("hidden_bias", adds_zero_times_bias, MASKED, {"replacement": "nan"}),
    ("hidden_bias", ignores_segments, MASKED, {"replacement": "other"}),
    (
        "permutation",
        depends_on_batch_position,
        PLAIN,
        {"batch_order": [1, 0], "head_order": [0, 1]},
    ),
    ("permutation", mixes_heads, PLAIN, {"batch_order": [0, 1], "head_order": [1, 0]}),
    ("duplication", mixes_batch, PLAIN, {"copy": [0, 1]}),
    ("batch_split", depends_on_batch_size, MASKED, {"cut": 1}),
    ("relabelling", takes_0_for_padding, MASKED, {"labels": [2, 1, 0]}),
    ("scaling", adds_an_epsilon, PLAIN, {"v_power": 1, "do_power": 0}),
    ("scaling", clips_cotangents, PLAIN, {"v_power": 0, "do_power": 10}),
    ("same_call", counts_calls, PLAIN, {}),
    (
        "block_choice",
        forgets_its_last_block,
        PLAIN,
        {"other_blocks": replace(BLOCKS, block_q=16).fields()},
    ),
    ("concatenation", ignores_segments, PLAIN, {"cut": [9, 7]}),
    ("constant_values", sums_to_more_than_1, PLAIN, {"constant": 1}),
    ("bias_shift", clips_bias, PLAIN, {"shift": 2}),
    ("sum_of_dv", loses_some_dv, PLAIN, {}),
    ("sum_of_dab", shifts_dab, PLAIN, {}),
    ("gradients_agree", forgets_the_scale_of_dab, PLAIN, {}),
    ("linearity", clips_cotangents, PLAIN, {"period": 2}),
    ("option_matters", ignores_causal_order, DESIGNATED["causal"], {"without": "causal"}),
    ("option_matters", ignores_bias, DESIGNATED["bias"], {"without": "bias"}),
    ("option_matters", ignores_segments, DESIGNATED["segments"], {"without": "segments"}),
    ("option_matters", ignores_scale, DESIGNATED["sm_scale"], {"without": "sm_scale"}),
]


@pytest.mark.parametrize(
    ("name", "fault", "case", "parameters"),
    FAULTS,
    ids=[f"{name}-{fault.__name__}" for name, fault, _, _ in FAULTS],
)
def test_fault_is_caught(name: str, fault: Attend, case: Case, parameters: dict[str, Any]) -> None:
    holds = checks.PROPERTIES[f"invariances.{name}"]
    case = replace(case, parameters=parameters)
    faulty = replace(KERNEL, call=fault, residuals=None)

    right, wrong = holds(case, KERNEL, "auto"), holds(case, faulty, "auto")

    assert (right.failure, right.skipped, right.mode) == (None, "", "numpy")
    assert right.verdicts
    assert wrong.failure is not None


@pytest.mark.parametrize("field", VALIDATED)
def test_block_field_that_is_not_validated_is_caught(field: str) -> None:
    holds = checks.PROPERTIES["invariances.block_field_matters"]
    case = replace(VALIDATED_CASE, parameters={"field": field})

    def construct(**fields: int) -> Any:
        right = VALIDATED_CASE.block_sizes
        assert right is not None
        return kernel.BlockSizes(**(fields | {field: right.fields()[field]}))

    assert holds(case, KERNEL, "auto").failure is None
    wrong = holds(case, replace(KERNEL, block_sizes=construct), "auto")
    assert wrong.failure is not None


def test_same_call_finds_what_changes_from_run_to_run() -> None:
    """The fault is in the results of one traced program, not in the trace."""
    runs = itertools.count()

    def call(q: Any, *args: Any, **options: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        run = jax.experimental.io_callback(lambda: jnp.float32(next(runs)), shape)
        return kernel.flash_attention(q * (1 + TINY * run), *args, **options)

    faulty = replace(KERNEL, call=call, residuals=None)

    found = checks.PROPERTIES["invariances.same_call"](PLAIN, faulty, "interpret")

    assert found.failure is not None


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("hidden_keys", PLAIN),
        ("unseen_keys", PLAIN),
        ("hidden_bias", replace(PLAIN, bias=None)),
        ("relabelling", PLAIN),
        ("bias_shift", replace(PLAIN, bias=None)),
        ("sum_of_dab", replace(PLAIN, bias=None)),
    ],
)
def test_case_that_says_nothing_is_counted_as_skipped(name: str, case: Case) -> None:
    parameters = {"row": 0, "replacement": "other", "labels": [], "shift": 1}
    case = replace(case, parameters=parameters)

    assert checks.PROPERTIES[f"invariances.{name}"](case, KERNEL, "auto").skipped


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("permutation", {"batch_order": [0, 0], "head_order": [0, 1]}),
        ("duplication", {"copy": [0, 2]}),
        ("batch_split", {"cut": 2}),
        ("constant_values", {"constant": "1"}),
        ("block_choice", {"other_blocks": {"block_q": 8}}),
        ("concatenation", {"cut": [24, 24]}),
        ("option_matters", {"without": "everything"}),
        ("relabelling", {"labels": [1, 1, 2]}),
    ],
)
def test_parameters_that_make_no_sense_are_bad_input(name: str, parameters: dict[str, Any]) -> None:
    case = replace(MASKED if name == "relabelling" else PLAIN, parameters=parameters)

    with pytest.raises(CaseError, match=next(iter(parameters))):
        checks.PROPERTIES[f"invariances.{name}"](case, KERNEL, "auto")


def test_target_is_held_to_bits_only_where_its_tiles_are_given() -> None:
    """A function without blocks may round otherwise in another row of the batch, by little."""
    parameters = {"batch_order": [1, 0], "head_order": [0, 1]}
    weak = replace(KERNEL, strict=False, call=depends_on_batch_position, residuals=None)
    holds = checks.PROPERTIES["invariances.permutation"]

    assert holds(replace(MASKED, parameters=parameters), weak, "auto").failure is not None
    small = replace(PLAIN, dtype="bfloat16", parameters=parameters)
    assert holds(small, weak, "auto").failure is None


def test_kernel_pads_by_the_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the property on padding would say nothing."""
    pad, padded = jnp.pad, []

    def spy(array: Any, *args: Any, **options: Any) -> Any:
        padded.append(array.ndim)
        return pad(array, *args, **options)

    monkeypatch.setattr(jnp, "pad", spy)
    # Another shape than in other tests: nothing of it was traced before.
    case = replace(MASKED, kv_len=25, block_sizes=None, segments=None)
    checks.outputs(case, replace(KERNEL, residuals=None), "auto")

    assert padded == [4, 4]  # k and v


@settings(max_examples=20)
@given(data=st.data())
def test_drawn_parameters_fit_their_property(data: st.DataObject) -> None:
    case = data.draw(drawing.cases(dtypes=("float32",)))
    name = data.draw(st.sampled_from(drawing.DRAWN))
    parameters = data.draw(drawing.parameters(name, case))
    if parameters is not None:
        case = Case.from_json(replace(case, parameters=parameters).to_json())
        assert checks.PROPERTIES[name](case, KERNEL, "auto").failure is None
