"""Results held against the oracle: what all properties that compare with the truth share."""

import dataclasses
import operator
from typing import Any

import numpy as np

import oracle
from properties.cases.case import Arrays, Blocks, Case, CaseError
from properties.judging import programs
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.judging.verdict import compare, saved_of_unseen

PRIMALS = ("q", "k", "v", "ab")

# What the verdict on an o that goes wrong only in the residuals begins with.
AS_SAVED = "as saved for the backward"


def truth_of(case: Case, target: Target, mode: str, arrays: Arrays) -> oracle.Truth:
    """The oracle's truth and bounds on `case` as the target computes it in `mode`."""
    case = without_edge(case)
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


def without_edge(case: Case) -> Case:
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


def without_masked_cotangents(arrays: Arrays, truth: oracle.Truth) -> Arrays:
    """The arrays with a cotangent of 0 in rows that see no key."""
    do = arrays.do.copy()
    do[~truth.rows] = 0
    return arrays._replace(do=do)


def differentiated(case: Case, target: Target) -> tuple[str, ...]:
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


def judge_forward(result: Result, target: Target, truth: oracle.Truth, got: dict[str, Any]) -> None:
    """Adds the verdicts on o and, where they were read, on the residuals; counts the rows."""
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
        saved = dataclasses.replace(saved, message=f"{AS_SAVED} {saved.message}")
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
        if verdict.passed and target.strict:
            # What others save there is their own affair.
            unseen = saved_of_unseen(truth, name, statistic)
            verdict = verdict if unseen.passed else unseen
        result.verdicts.append(verdict)
        if not verdict.passed:
            return


def judge_backward(
    result: Result,
    truth: oracle.Truth,
    arrays: Arrays,
    got: dict[str, Any],
    of: tuple[str, ...],
) -> None:
    """Adds the verdicts on the gradients named in `of`."""
    if "residuals" in got:
        truth = truth.given((got["o"], *got["residuals"][1:]))
    for name in of:
        primal = getattr(arrays, name)
        result.verdicts.append(compare(truth, f"d{name}", got[f"d{name}"], dtype=primal.dtype.name))
