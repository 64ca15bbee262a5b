"""Each option matters: a target that ignores one gives the same with it and without."""

from dataclasses import replace
from typing import Any

import numpy as np

from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.claims import refusal
from properties.claims.invariances.table import invariance
from properties.judging.calls import Calls

# Lengths that any kernel takes.
_PLAIN = Case(1, 2, 128, 128, 8, sm_scale=0.5)
_PARTS = (((0, 50), (1, 78)),)

DESIGNATED: dict[str, Case] = {
    "causal": replace(_PLAIN, causal=True),
    "bias": replace(_PLAIN, bias=Bias("float32", "normal")),
    "segments": replace(_PLAIN, segments=Segments("int32", _PARTS, _PARTS)),
    "sm_scale": _PLAIN,
}
"""By option, a case in which it must change the result."""

_WITHOUT: dict[str, dict[str, Any]] = {
    "causal": {"causal": False},
    "bias": {"bias": None},
    "segments": {"segments": None},
    "sm_scale": {"sm_scale": 1.0},
}


@invariance
def option_matters(calls: Calls) -> None:
    """f(x) != f(x without the option) wherever the two truths are further apart than both bounds.

    `parameters["without"]` is the option: causal, bias, segments, or sm_scale, which is then 1.
    """
    option = calls.choice("without", _WITHOUT)
    other = replace(calls.case, **_WITHOUT[option])
    changed: dict[str, Any] = {
        "ab": None if other.bias is None else calls.arrays.ab,
        "q_segment_ids": None if other.segments is None else calls.arrays.q_segment_ids,
        "kv_segment_ids": None if other.segments is None else calls.arrays.kv_segment_ids,
    }
    plain, got = calls.plain(), calls.run(other, **changed)
    truth, of_other = calls.plain_truth(), calls.truth(other, **changed)
    calls.count_rows(truth)
    apart = {}
    for name in calls.judged():
        if name in got:
            distance = np.abs(truth.values[name] - of_other.values[name])
            allowed = calls.tolerance(truth, plain, name) + calls.tolerance(of_other, got, name)
            apart[name] = distance > allowed
    if not any(each.any() for each in apart.values()):
        calls.stop(f"{option} does not show in this case")
    for name, must_differ in apart.items():
        calls.different(name, plain[name], got[name], must_differ, f"without {option}")


VALIDATED: dict[str, tuple[str, dict[str, Any]]] = {
    "block_q": ("q_block_align", {"size": 12}),
    "block_k_major": ("k_major_divides", {"sizes": [256, 128]}),
    "block_k": ("k_block_align", {"size": 192}),
    "block_b": ("block_b_exceeds", {"excess": 1}),
    "block_q_major_dkv": ("q_block_align", {"size": 12}),
    "block_k_major_dkv": ("k_major_divides", {"sizes": [256, 128]}),
    "block_k_dkv": ("k_block_align", {"size": 192}),
    "block_q_dkv": ("minor_divides", {"sizes": [24, 16]}),
    "block_k_major_dq": ("k_major_divides", {"sizes": [256, 128]}),
    "block_k_dq": ("k_block_align", {"size": 192}),
    "block_q_dq": ("q_block_align", {"size": 12}),
}
"""By field of BlockSizes, a rule that a value of it can break, and how, in `VALIDATED_CASE`."""

VALIDATED_CASE = Case(
    *(1, 1, 24, 384, 8),
    block_sizes=Blocks(24, 384, 384, 1, *(24, 384, 384, 24), *(384, 384, 24)),
)


@invariance
def block_field_matters(calls: Calls) -> None:
    """A call with legal blocks is accepted, the same with a wrong value in one field is refused.

    `parameters["field"]` is the field of BlockSizes; `VALIDATED` says how it is made wrong.
    """
    field = calls.choice("field", VALIDATED)
    calls.run()
    rule, way = VALIDATED[field]
    parameters = way if rule == "block_b_exceeds" else {"field": field, **way}
    broken = replace(calls.case, breaks=rule, parameters=parameters)
    found = refusal.refusal(broken, calls.target, calls.result.mode)
    if found.skipped:
        calls.stop(found.skipped)
    calls.result.verdicts += found.verdicts


LEFT_OUT_CASE = Case(1, 2, 24, 128, 8)
"""A case in which every option has its default value."""


@invariance
def options_left_out(calls: Calls) -> None:
    """f(q, k, v) with nothing else given is f without bias, segments and causal order, at scale 1.

    The case is `LEFT_OUT_CASE`, in any dtype. Said of the kernel alone, whose signature is fixed.
    """
    target = calls.target
    if not target.strict:
        calls.stop("only the kernel of this project is held to defaults of options")
    if calls.case != replace(LEFT_OUT_CASE, dtype=calls.case.dtype):
        raise CaseError("the case must have every option at its default")
    arrays = calls.arrays

    def left_out(q: Any, k: Any, v: Any) -> dict[str, Any]:
        found = {"o": target.call(q, k, v)}
        if target.residuals is not None:
            found |= zip(("saved_o", "l", "m"), target.residuals(q, k, v), strict=True)
        return found

    got = calls.run_function(left_out, arrays.q, arrays.k, arrays.v)
    plain = calls.plain()
    calls.repeats(got, {name: plain[name] for name in got}, calls.plain_truth)
