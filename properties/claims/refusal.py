"""Calls that must be refused: by the contract's exception and words, before a kernel is traced."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental import pallas

from oracle import contract
from properties.cases.case import BACKWARD_BLOCKS, FORWARD_BLOCKS, Case
from properties.drawing import breaking
from properties.judging.result import REFUSALS, Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

# Shapes that contradict each other: no target may make sense of these.
CONTRADICTIONS = frozenset(
    {
        "rank",
        "batch_mismatch",
        "heads_mismatch",
        "head_dim_mismatch",
        "kv_len_mismatch",
        "bias_shape",
        "segments_shape",
    }
)

# Broken by what is done with the call; its arguments are legal. A derivative begins with a trace of
# what is differentiated, so these, and lacking backward blocks, show only after a kernel is traced.
TRANSFORMATIONS = {
    "second_order": contract.Refusal("second_order", NotImplementedError, ("second",)),
    "forward_mode": contract.Refusal("forward_mode", TypeError, ()),
}
DERIVATIVES = frozenset({"backward_missing", *TRANSFORMATIONS})


def refusal(case: Case, target: Target, mode: str) -> Result:
    """A call that breaks a rule raises that rule's exception with that rule's words, before any
    kernel is traced (a derivative: before any is compiled), so alike in every engine."""
    result = Result("refusals", case, mode)
    transformed = TRANSFORMATIONS.get(case.breaks or "")
    arguments, blocks = breaking.call(
        case if transformed is None else dataclasses.replace(case, breaks=None)
    )
    result.skipped = _not_asked(case, target, arguments, blocks)
    if result.skipped:
        return result
    expected = transformed or _expected(case, arguments, blocks)
    with mock.patch.object(pallas, "pallas_call", wraps=pallas.pallas_call) as kernel:
        try:
            _call(case, target, arguments, blocks)
        # Whatever a target raises is the very thing to be judged.
        except Exception as error:
            wrong = _wrong(error, expected, target)
            early = target.strict and case.breaks not in DERIVATIVES
            if not wrong and early and kernel.called:
                wrong = "is refused only after a kernel was traced; check it before"
        else:
            wrong = f"is accepted, must raise {_described(expected)}"
    if wrong:
        result.verdicts.append(Verdict("call", wrong))
    else:
        result.refused = "broke a rule on purpose"
    return result


def _not_asked(
    case: Case, target: Target, arguments: Mapping[str, Any], blocks: Mapping[str, Any] | None
) -> str:
    if target.strict:
        return ""
    if case.breaks not in CONTRADICTIONS:
        return "only the kernel of this project is held to rules beyond contradicting shapes"
    present = {"bias": arguments["ab"], "segments": arguments["segment_ids"], "block_sizes": blocks}
    for feature, value in present.items():
        if value is not None and feature not in target.features:
            return f"{target.name} does not claim {feature}"
    return target.unclaimed(case) or ""


def _expected(
    case: Case, arguments: Mapping[str, Any], blocks: Mapping[str, Any] | None
) -> contract.Refusal:
    """What the contract says of the call. It must be what the case was made to break."""
    refusal = None if blocks is None else contract.block_sizes_refusal(blocks)
    if refusal is None:
        given = dict(arguments)
        if blocks is not None:
            every_field = dict.fromkeys((*FORWARD_BLOCKS, *BACKWARD_BLOCKS)) | dict(blocks)
            given["block_sizes"] = types.SimpleNamespace(**every_field)
        refusal = contract.call_refusal(**given, differentiated=case.breaks == "backward_missing")
    if refusal is None or refusal.rule != case.breaks:
        raise RuntimeError(
            f"the harness contradicts itself: the case is to break {case.breaks}, the contract "
            f"finds {refusal and refusal.rule}: {case.to_json()}"
        )
    return refusal


def _call(
    case: Case, target: Target, arguments: Mapping[str, Any], blocks: Mapping[str, Any] | None
) -> None:
    """Makes the call as a caller would, under a trace so that no kernel ever runs."""
    given = dict(arguments)
    if blocks is not None:
        given["block_sizes"] = target.block_sizes(**blocks)
        if contract.block_sizes_refusal(blocks) is not None:
            return  # The construction had to raise.
    if isinstance(given["segment_ids"], breaking.SegmentIds):
        given["segment_ids"] = target.segment_ids(*given["segment_ids"])

    def call(q: Any) -> Any:
        return target.call(**(given | {"q": q}))

    def loss(q: Any) -> Any:
        return jnp.sum(call(q).astype(jnp.float32))

    q = given["q"]
    asked: Callable[[], Any] = {
        "backward_missing": lambda: jax.grad(loss)(q),
        "second_order": lambda: jax.grad(lambda q: jnp.sum(jax.grad(loss)(q)))(q),
        "forward_mode": lambda: jax.jvp(call, (q,), (q,)),
    }.get(case.breaks or "", lambda: call(q))
    traced = jax.jit(asked).trace()
    if case.breaks == "forward_mode":
        # jax itself refuses this one, and only when it lowers.
        traced.lower(lowering_platforms=("tpu",))


def _wrong(error: Exception, expected: contract.Refusal, target: Target) -> str:
    """How the refusal differs from the one that is due, empty if it does not."""
    got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not target.strict:
        return "" if isinstance(error, REFUSALS) else f"raises {got}; must refuse by {_NAMES}"
    if type(error) is not expected.exception:
        return f"raises {got}; must raise {_described(expected)}"
    missing = [word for word in expected.words if word not in str(error)]
    return f"raises {got}; its message lacks {', '.join(map(repr, missing))}" if missing else ""


_NAMES = ", ".join(each.__name__ for each in REFUSALS)


def _described(expected: contract.Refusal) -> str:
    return f"{expected.exception.__name__} for the rule {expected.rule!r}"
