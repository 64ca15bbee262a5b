"""The properties pass a right target and fail a wrong one, whatever is wrong with it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas

from properties.cases.case import Bias, Case, Segments
from properties.claims import checks
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict


class Ids(NamedTuple):
    q: Any
    kv: Any


def attend(
    *arrays: Any,
    segment_ids: Ids | None = None,
    causal: bool = False,
    sm_scale: float = 1.0,
    block_sizes: object = None,
    debug: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(o, l, m) by the definition, in float32."""
    q, k, v, ab = arrays
    logits = jnp.einsum("bhqd,bhkd->bhqk", *(x.astype(jnp.float32) for x in (q, k)))
    visible = jnp.ones(logits.shape, bool)
    if ab is not None:
        visible &= ab != -jnp.inf
        logits = logits + jnp.where(visible, ab, 0).astype(jnp.float32)
    logits = logits * sm_scale
    if causal:
        visible &= jnp.tril(jnp.ones(logits.shape[2:], bool))
    if segment_ids is not None:
        visible &= (segment_ids.q[:, :, None] == segment_ids.kv[:, None, :])[:, None]
    rows = visible.any(-1)
    m = jax.lax.stop_gradient(jnp.where(visible, logits, -jnp.inf).max(-1))
    m = jnp.where(rows, m, 0.0)
    p = jnp.where(visible, jnp.exp(jnp.where(visible, logits - m[..., None], 0.0)), 0.0)
    l = p.sum(-1)
    o = jnp.einsum("bhqk,bhkd->bhqd", p, v.astype(jnp.float32))
    return (o / jnp.where(rows, l, 1.0)[..., None]).astype(q.dtype), l, m


def _output(*args: Any, **options: Any) -> jax.Array:
    return attend(*args, **options)[0]


RIGHT = Target("right", _output, dict, Ids, masked_rows="zero", residuals=attend)
PLAIN = Case(2, 2, 16, 24, 8, sm_scale=0.5, bias=Bias("float32", "normal"))
# The first two queries see nothing, and the last keys are seen by none.
HIDDEN = Case(
    1, 2, 16, 24, 8, segments=Segments("int32", (((7, 2), (0, 14)),), (((0, 20), (1, 4)),))
)


def _wrong(call: Callable[..., Any] = _output, **fields: Any) -> Target:
    return dataclasses.replace(RIGHT, name="wrong", call=call, **fields)


def _failure(result: Result) -> Verdict:
    assert result.failure is not None, result
    return result.failure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [PLAIN, HIDDEN], ids=["plain", "hidden"])
@pytest.mark.parametrize("masked_rows", ["zero", "any"])
@pytest.mark.parametrize("check", [checks.outputs, checks.gradients])
def test_right_target_passes(
    check: Callable[..., Result], masked_rows: Any, case: Case, dtype: str
) -> None:
    # This backward does not start from an o that was rounded to bfloat16, as a kernel's does.
    residuals = attend if dtype == "float32" else None
    target = dataclasses.replace(RIGHT, masked_rows=masked_rows, residuals=residuals)

    result = check(dataclasses.replace(case, dtype=dtype), target, "interpret")

    assert result.failure is None
    assert result.verdicts
    hidden = 4 if case is HIDDEN and masked_rows == "any" else 0
    assert result.rows == case.batch * case.heads * case.q_len - hidden


def test_residuals_are_judged_where_they_can_be_read() -> None:
    assert [each.output for each in checks.outputs(PLAIN, RIGHT, "interpret").verdicts] == [
        *("o", "o", "m", "l")
    ]
    hidden = dataclasses.replace(RIGHT, residuals=None)
    assert [each.output for each in checks.outputs(PLAIN, hidden, "interpret").verdicts] == ["o"]


@pytest.mark.parametrize("of", [["q"], ["ab"], ["v", "k"], ["q", "k", "v", "ab"]])
def test_what_is_differentiated_is_judged(of: list[str]) -> None:
    case = dataclasses.replace(PLAIN, parameters={"gradient_of": of})

    result = checks.gradients(case, RIGHT, "interpret")

    judged = [each.output for each in result.verdicts if each.output.startswith("d")]
    assert sorted(judged) == sorted(f"d{name}" for name in of)
    assert result.failure is None


@jax.custom_vjp
def _twice_the_gradient(x: jax.Array) -> jax.Array:
    return x


_twice_the_gradient.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


@pytest.mark.parametrize("name", ["q", "k", "v", "ab"])
def test_one_wrong_gradient_fails(name: str) -> None:
    position = ("q", "k", "v", "ab").index(name)

    def call(*arrays: Any, **options: Any) -> jax.Array:
        changed = list(arrays)
        changed[position] = _twice_the_gradient(changed[position])
        return _output(*changed, **options)

    assert _failure(checks.gradients(PLAIN, _wrong(call), "interpret")).output == f"d{name}"
    assert checks.outputs(PLAIN, _wrong(call), "interpret").failure is None


def test_leak_from_a_row_that_sees_nothing_fails() -> None:
    """Such a row has a cotangent, which must reach no gradient."""

    @jax.custom_vjp
    def leaking(o: jax.Array, v: jax.Array) -> jax.Array:
        return o

    def backward(_: None, do: jax.Array) -> tuple[jax.Array, jax.Array]:
        return do, jnp.zeros((1, 2, 24, 8)).at[:, :, 0].set(do[:, :, 0])

    leaking.defvjp(lambda o, v: (o, None), backward)

    def call(q: Any, k: Any, v: Any, ab: Any, **options: Any) -> jax.Array:
        return leaking(_output(q, k, v, ab, **options), v)

    assert _failure(checks.gradients(HIDDEN, _wrong(call), "interpret")).output == "dv"
    tolerant = _wrong(call, masked_rows="any")
    assert checks.gradients(HIDDEN, tolerant, "interpret").failure is None


def _mean_where_nothing_is_seen(*args: Any, **options: Any) -> jax.Array:
    o, l, _ = attend(*args, **options)
    return jnp.where((l > 0)[..., None], o, args[2].mean(2, keepdims=True))


def test_row_that_sees_nothing_is_judged_as_the_target_claims() -> None:
    zero = _wrong(_mean_where_nothing_is_seen)
    anything = _wrong(_mean_where_nothing_is_seen, masked_rows="any")

    assert _failure(checks.outputs(HIDDEN, zero, "interpret")).output == "o"
    assert checks.outputs(HIDDEN, anything, "interpret").failure is None
    assert checks.gradients(HIDDEN, anything, "interpret").failure is None


def test_of_a_row_that_sees_nothing_the_kernel_must_save_so() -> None:
    def residuals(l_there: float, *args: Any, **options: Any) -> tuple[jax.Array, ...]:
        o, l, m = attend(*args, **options)
        return o, jnp.where(l > 0, l, l_there), jnp.where(l > 0, m, -jnp.inf)

    described = functools.partial(residuals, 0.0)
    assert checks.outputs(HIDDEN, RIGHT, "interpret").failure is None
    strict = dataclasses.replace(RIGHT, strict=True)
    assert _failure(checks.outputs(HIDDEN, strict, "interpret")).output == "m"
    strict = dataclasses.replace(strict, residuals=described)
    assert checks.outputs(HIDDEN, strict, "interpret").failure is None
    strict = dataclasses.replace(strict, residuals=functools.partial(residuals, 1.0))
    assert _failure(checks.outputs(HIDDEN, strict, "interpret")).output == "l"


@pytest.mark.parametrize("which", [0, 1, 2], ids=["o", "l", "m"])
def test_wrong_residual_fails(which: int) -> None:
    def residuals(*args: Any, **options: Any) -> tuple[jax.Array, ...]:
        right = list(attend(*args, **options))
        right[which] = right[which] + 0.5
        return tuple(right)

    target = _wrong(residuals=residuals)

    for check in (checks.outputs, checks.gradients):
        assert _failure(check(PLAIN, target, "interpret")).output in ("o", "l", "m")


def test_log_sum_exp_is_judged() -> None:
    def residuals(shift: float, *args: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
        o, l, m = attend(*args, **options)
        return o, m + jnp.log(l) + shift

    def target(shift: float) -> Target:
        return _wrong(
            residuals=functools.partial(residuals, shift),
            arithmetic_differs={"saves_lse": True},
        )

    right = checks.gradients(PLAIN, target(0.0), "interpret")
    assert right.failure is None
    assert "lse" in [each.output for each in right.verdicts]
    assert _failure(checks.outputs(PLAIN, target(0.01), "interpret")).output == "lse"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("error", [ValueError, TypeError, NotImplementedError, KeyError])
def test_exception_is_a_refusal_only_where_the_contract_is_weak(
    strict: bool, error: type[Exception]
) -> None:
    def call(*args: Any, **options: Any) -> Any:
        raise error("not for 12 keys")

    result = checks.outputs(PLAIN, _wrong(call, strict=strict), "interpret")

    if strict or error is KeyError:
        assert error.__name__ in _failure(result).message
    else:
        assert result.failure is None
        assert result.refused == f"{error.__name__}: not for N keys"


def test_case_outside_the_claims_is_skipped() -> None:
    target = _wrong(features=frozenset({"gradients", "bias"}))

    assert checks.outputs(HIDDEN, target, "interpret").skipped
    no_gradients = _wrong(features=frozenset({"bias", "bias_gradient"}))
    assert checks.gradients(PLAIN, no_gradients, "interpret").skipped
    no_bias_gradient = _wrong(features=frozenset({"bias", "gradients"}))
    judged = checks.gradients(PLAIN, no_bias_gradient, "interpret").verdicts
    assert "dab" not in [each.output for each in judged]


def test_gradient_of_something_else_is_bad_input() -> None:
    case = dataclasses.replace(PLAIN, bias=None, parameters={"gradient_of": ["ab"]})

    with pytest.raises(ValueError, match="gradient_of"):
        checks.gradients(case, RIGHT, "interpret")


def test_new_data_reuses_the_program() -> None:
    traces = []

    def call(*args: Any, **options: Any) -> jax.Array:
        traces.append(1)
        return _output(*args, **options)

    target = _wrong(call)
    for seed, family in enumerate(("normal", "integers", "peaked")):
        case = dataclasses.replace(PLAIN, seed=seed, values=family)
        assert checks.outputs(case, target, "interpret").failure is None
    assert len(traces) == 1
    checks.outputs(dataclasses.replace(PLAIN, causal=True), target, "interpret")
    assert len(traces) == 2


MISMATCH = Case(1, 1, 8, 8, 8, breaks="kv_len_mismatch", parameters={"argument": "v", "size": 7})


def _refusing(error: Exception, **fields: Any) -> Target:
    def call(*args: Any, **options: Any) -> Any:
        raise error

    return _wrong(call, **fields)


def test_refusal_in_the_words_of_the_contract_passes() -> None:
    target = _refusing(ValueError("v has length 7, but k has length 8"), strict=True)

    result = checks.refusals(MISMATCH, target, "auto")

    assert result.failure is None
    assert result.refused


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("v is wrong, k has length 8"), "'7'"),
        (TypeError("v has length 7, but k has length 8"), "must raise ValueError"),
        (IndexError("v has length 7, but k has length 8"), "must raise ValueError"),
    ],
)
def test_refusal_in_other_words_or_of_another_type_fails(error: Exception, words: str) -> None:
    result = checks.refusals(MISMATCH, _refusing(error, strict=True), "auto")

    assert words in _failure(result).message


def test_refusal_by_any_words_is_enough_under_the_weak_contract() -> None:
    assert checks.refusals(MISMATCH, _refusing(TypeError("no")), "auto").failure is None
    assert (
        "IndexError"
        in _failure(checks.refusals(MISMATCH, _refusing(IndexError("no")), "auto")).message
    )


@pytest.mark.parametrize("strict", [True, False])
def test_contradiction_that_is_accepted_fails(strict: bool) -> None:
    target = _wrong(lambda q, **options: q, strict=strict)

    assert "is accepted" in _failure(checks.refusals(MISMATCH, target, "auto")).message


def test_refusal_after_a_kernel_was_traced_fails() -> None:
    def call(q: Any, *args: Any, **options: Any) -> Any:
        pallas.pallas_call(_copy, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype))(q)
        raise ValueError("v has length 7, but k has length 8")

    result = checks.refusals(MISMATCH, _wrong(call, strict=True), "auto")

    assert "after a kernel" in _failure(result).message


def _copy(source: Any, result: Any) -> None:
    result[...] = source[...]


def test_rule_beyond_shapes_is_not_asked_under_the_weak_contract() -> None:
    case = Case(1, 1, 8, 8, 8, breaks="second_order")

    assert checks.refusals(case, _wrong(), "auto").skipped


def test_accepted_call_is_judged_everywhere_that_is_asked() -> None:
    case = dataclasses.replace(PLAIN, parameters={"everywhere": ["v5e"]})

    result = checks.refusals(case, RIGHT, "interpret")

    assert result.failure is None
    assert result.ran == ["interpret", "interpret", "tpu-interpret", "compiled for v5e"]
