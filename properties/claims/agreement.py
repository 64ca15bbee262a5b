"""Whether two engines agree on a case: the NumPy engine, and Pallas's interpreter.

The fast engine is a program of this harness, and may be wrong; the interpreter is slower, more
lenient, and Pallas's own.  Either both results are within the bounds of the truth, or neither is.
This is all that can be asked without a tolerance: results that differ in their roundings alone are
both right, and two right ones are no further apart than the bounds of both together.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from properties.cases.case import Case
from properties.judging.judge import AS_SAVED
from properties.judging.result import Result, engines_for
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

FAST, REFERENCE = "numpy", "interpret"


def agreement(
    judge: Callable[[Case, Target, str], Result], case: Case, target: Target, mode: str
) -> Result:
    """Runs `judge`, a property that runs a target and judges it, in both engines.

    Skips what there is nothing to compare in: a case that `mode` does not let run in both, or that
    the NumPy engine cannot run. What is wrong in both fails too, as `judge` puts it: no other
    property need draw the same case.
    """
    result = Result("engines", case, FAST)
    if FAST not in engines_for(mode):
        result.skipped = f"compares {FAST} with {REFERENCE}, which mode {mode} does not run"
        return result
    fast = judge(case, target, FAST)
    result.skipped, result.refused = fast.skipped, fast.refused
    if result.skipped or result.refused:
        return result
    reference = judge(case, target, REFERENCE)
    for each in (fast, reference):
        result.ran += each.ran
        result.oracle_seconds += each.oracle_seconds
    if fast.failure and reference.failure:
        result.verdicts = fast.verdicts
    elif reference.failure:
        result.verdicts = [_disagreement(reference, reference.failure, fast)]
    elif fast.failure:
        result.verdicts = [_disagreement(fast, fast.failure, reference)]
    else:
        result.verdicts = fast.verdicts + reference.verdicts
    return result


def _disagreement(wrong: Result, verdict: Verdict, right: Result) -> Verdict:
    value = "" if verdict.index is None else f": {_value(right.got, verdict):.9g}"
    message = f"in {wrong.mode} {verdict.message}; {right.mode} is right{value}"
    return dataclasses.replace(verdict, message=message)


def _value(got: dict[str, Any], verdict: Verdict) -> float:
    """The element that the verdict is about, in another engine's result."""
    outputs = dict(got)
    if "residuals" in outputs:
        o, *statistics = outputs.pop("residuals")
        outputs |= zip(("l", "m") if len(statistics) == 2 else ("lse",), statistics, strict=True)
        if verdict.message.startswith(AS_SAVED):
            outputs["o"] = o
    return float(outputs[verdict.output][verdict.index])
