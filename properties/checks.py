"""The properties, each a function of one case: run it on a target, hold the result to the oracle.

Tests, replay and every later command go through here, so that all of them judge alike.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import oracle
from properties import programs, refusal
from properties.case import Arrays, Blocks, Case, CaseError
from properties.result import Result, attempt
from properties.targets import Target
from properties.verdict import compare, raised

PRIMALS = ("q", "k", "v", "ab")


def outputs(case: Case, target: Target, mode: str) -> Result:
    """o is within its bound of softmax over the visible keys of (q kᵀ + ab) sm_scale, times v;
    l and m, or lse, likewise, where the target lets them be read."""
    result = Result("outputs", case, mode, skipped=target.unclaimed(case) or "")
    if result.skipped:
        return result
    arrays = case.arrays()
    got = attempt(
        result,
        target,
        lambda: programs.outputs(case, target, arrays),
        *programs.inputs(arrays),
    )
    if got is not None:
        with result.judging():
            _judge_forward(result, target, truth_of(case, target, result.mode, arrays), got)
    return result


def gradients(case: Case, target: Target, mode: str) -> Result:
    """The gradients of sum(o do) in q, k, v and ab are within their bounds of the truth.

    `case.parameters["gradient_of"]` names the arguments that are differentiated, all by default;
    do is random. Where l and m can be read, the backward is held to what follows from the target's
    own o, l and m, which is sharper, and these are held to the truth: together they imply the bound
    from end to end. A row without a visible key gets a cotangent like any other where it must give
    zeros, so that a leak shows; it gets none where it may give anything.
    """
    result = Result("gradients", case, mode, skipped=target.unclaimed(case) or "")
    of = _differentiated(case, target)
    if not of:
        result.skipped = f"{target.name} does not claim the gradient that is asked for"
    elif case.block_sizes is not None and not case.block_sizes.backward:
        result.skipped = "its block sizes are for the forward alone"
    if result.skipped:
        return result
    arrays = case.arrays()
    if target.masked_rows == "any":
        with result.judging():
            arrays = _without_masked_cotangents(arrays, truth_of(case, target, mode, arrays))
    got = attempt(
        result,
        target,
        lambda: programs.gradients(case, target, arrays, of),
        *programs.inputs(arrays),
        arrays.do,
    )
    if got is not None:
        with result.judging():
            truth = truth_of(case, target, result.mode, arrays)
            _judge_forward(result, target, truth, got)
            # Gradients from a wrong o, l or m would be judged against nonsense.
            if result.failure is None:
                _judge_backward(result, truth, arrays, got, of)
    return result


def refusals(case: Case, target: Target, mode: str) -> Result:
    """A call that breaks a rule of the contract is refused as the rule says, before any kernel is
    traced; a call at the very edge of the rules is accepted and right.

    Where `case.parameters["everywhere"]` lists TPU generations, an accepted call is also run in
    both interpreters and compiled ahead of time for those.
    """
    if case.breaks is not None:
        return refusal.refusal(case, target, mode)
    plain = _without_edge(case)
    backward = plain.block_sizes is None or plain.block_sizes.backward
    judge = gradients if backward and "gradients" in target.features else outputs
    result = judge(case, target, mode)
    result.name = "refusals"
    if "everywhere" not in case.parameters:
        return result
    for engine in ("interpret", "tpu-interpret"):
        if not result.failure and not result.refused:
            result.add(judge(case, target, engine))
    for generation in case.parameters["everywhere"]:
        if not result.failure and not result.refused:
            _compile(result, target, generation, backward=judge is gradients)
    return result


PROPERTIES: dict[str, Callable[[Case, Target, str], Result]] = {
    "outputs": outputs,
    "gradients": gradients,
    "refusals": refusals,
}


def truth_of(case: Case, target: Target, mode: str, arrays: Arrays) -> oracle.Truth:
    """The oracle's truth and bounds on `case` as the target computes it in `mode`."""
    case = _without_edge(case)
    segment_ids = None
    if arrays.q_segment_ids is not None:
        segment_ids = (arrays.q_segment_ids, arrays.kv_segment_ids)
    return oracle.Truth(
        arrays.q,
        arrays.k,
        arrays.v,
        arrays.ab,
        segment_ids,
        arrays.do,
        causal=case.causal,
        sm_scale=case.sm_scale,
        arithmetic=target.arithmetic(case, mode),
    )


def _compile(result: Result, target: Target, generation: str, *, backward: bool) -> None:
    """Compiles what was judged, by the program that was traced for it."""
    case = result.case
    arrays = case.arrays()
    if backward:
        program = programs.gradients(case, target, arrays, _differentiated(case, target))
    else:
        program = programs.outputs(case, target, arrays)
    result.ran.append(f"compiled for {generation}")
    try:
        program.compile_for(generation)
    # A compiler's error has no type of its own, and every one is the finding.
    except Exception as error:
        result.verdicts.append(raised(error, f"compiling for {generation}"))


def _judge_forward(
    result: Result, target: Target, truth: oracle.Truth, got: dict[str, Any]
) -> None:
    judged = np.ones_like(truth.rows) if target.masked_rows == "zero" else truth.rows
    result.rows += int(judged.sum())
    result.untested_rows += int((judged & truth.untested_rows).sum())
    dtype = result.case.dtype
    result.verdicts.append(compare(truth, "o", got["o"], dtype=dtype, judged_rows=judged))
    if "residuals" not in got:
        return
    # The forward that saves residuals may be another kernel than the one that does not.
    o, *statistics = got["residuals"]
    saved = compare(truth, "o", o, dtype=dtype, judged_rows=judged)
    if not saved.passed:
        saved = dataclasses.replace(saved, message=f"as saved for the backward {saved.message}")
    result.verdicts.append(saved)
    # m first: l has a meaning only at an m that is right.
    names = ("m", "l") if len(statistics) == 2 else ("lse",)
    for name, statistic in zip(names, reversed(statistics), strict=True):
        verdict = compare(
            truth,
            name,
            statistic,
            dtype="float32",
            judged_rows=truth.rows,
            kernel_m=statistics[-1],
        )
        result.verdicts.append(verdict)
        if not verdict.passed:
            return


def _judge_backward(
    result: Result,
    truth: oracle.Truth,
    arrays: Arrays,
    got: dict[str, Any],
    of: tuple[str, ...],
) -> None:
    if "residuals" in got:
        truth = truth.given((got["o"], *got["residuals"][1:]))
    for name in of:
        primal = getattr(arrays, name)
        result.verdicts.append(compare(truth, f"d{name}", got[f"d{name}"], dtype=primal.dtype.name))


def _differentiated(case: Case, target: Target) -> tuple[str, ...]:
    """What of q, k, v and ab the case is differentiated by, as far as the target claims that."""
    present = PRIMALS if case.bias is not None else PRIMALS[:-1]
    asked = case.parameters.get("gradient_of", list(present))
    if not isinstance(asked, list) or not asked or not all(name in present for name in asked):
        raise CaseError(
            f"parameters.gradient_of: got {asked!r}; expected a list of some of "
            f"{', '.join(present)}"
        )
    claimed = {"gradients", "bias_gradient"} & target.features
    if "gradients" not in claimed:
        return ()
    # In this order, whatever the case's: it is part of what a program is kept by.
    return tuple(
        name for name in present if name in asked and (name != "ab" or "bias_gradient" in claimed)
    )


def _without_edge(case: Case) -> Case:
    """The case that says in plain forms what a call at the edge passes in unusual ones."""
    if "edge" not in case.parameters:
        return case
    passed, blocks = programs.static_arguments(case)
    sizes = {name: operator.index(size) for name, size in (blocks or {}).items()}
    return dataclasses.replace(
        case,
        causal=bool(passed["causal"]),
        sm_scale=float(passed["sm_scale"]),
        block_sizes=Blocks(**sizes) if sizes else None,
        parameters={},
    )


def _without_masked_cotangents(arrays: Arrays, truth: oracle.Truth) -> Arrays:
    do = arrays.do.copy()
    do[~truth.rows] = 0
    return arrays._replace(do=do)
