"""Statistics over all elements of an output: what stays within every bound, and is still wrong.

`oracle.statistics` says what they are and where their limits come from.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oracle import Truth
from oracle.emulation import Emulation
from oracle.statistics import CAST, Deviations, is_generic, limits
from properties.cases.case import Arrays, Case
from properties.drawing import designated
from properties.judging.judge import truth_of, without_masked_cotangents
from properties.judging.result import CHIP, Result, engines_for
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

KINDS = ("likely", "rms", "row", "bias", "paired")
"""Verdicts are on "OUTPUT KIND", as in "dq rms"; `likely` is about single elements."""


def statistics(
    judge: Callable[[Case, Target, str], Result], case: Case, target: Target, mode: str
) -> Result:
    """On random data without ties the errors of a call are as large, and as independent, as those
    of its declared roundings.

    Every element is within 8 standard deviations of what roundings add up to. Over each output, the
    root mean square of error over predicted error, the same in the worst row, and what errors have
    in common with the truth are those of a correct kernel; the root mean square is that of an
    emulation which rounds at the same places. `judge` is a property that runs a target and judges
    it by its bounds; what that fails is reported as it says.
    """
    arrays = case.arrays()
    skipped = designated.unsuited(case)
    if not skipped and not is_generic(arrays.q, arrays.k, arrays.v, arrays.do):
        skipped = "its data has ties"
    if engines_for(mode) == (CHIP,):
        skipped = "how the functions of a TPU round is not known, only by how much at most"
    if skipped:
        return Result("statistics", case, mode, skipped=skipped)
    result = judge(case, target, mode)
    result.name = "statistics"
    if result.failure or result.refused or result.skipped:
        return result
    with result.judging():
        found = list(_verdicts(case, target, result.mode, arrays, result.got))
    if not found:
        result.skipped = "a row is too ill-conditioned for statistics"
    result.verdicts += found
    return result


def _verdicts(
    case: Case, target: Target, mode: str, arrays: Arrays, got: dict[str, Any]
) -> Iterator[Verdict]:
    truth = truth_of(case, target, mode, arrays)
    if target.masked_rows == "any":
        arrays = without_masked_cotangents(arrays, truth)
        truth = truth_of(case, target, mode, arrays)
        # It may give anything there.
        got = {**got, "o": np.where(truth.rows[..., None], got["o"], np.zeros_like(got["o"]))}
    if not truth.well_conditioned:
        return
    gradients = {name: each for name, each in got.items() if name.startswith("d")}
    forward = {"o": got["o"]}
    m = None
    if "residuals" in got:
        _, *saved = got["residuals"]
        forward |= dict(zip(("l", "m") if len(saved) == 2 else ("lse",), saved, strict=True))
        m = forward.get("m")
    of_gradients = truth.given((got["o"], *saved)) if "residuals" in got and gradients else truth
    emulated = list(_emulated(case, arrays, truth, "residuals" in got, bool(gradients)))
    for name, found in forward.items():
        yield from _judged(truth, name, found, m, emulated)
    for name, found in gradients.items():
        # End to end, the error of a row sum of o do is common to a row of dq, and often most of it:
        # a row is then no average.
        averages = of_gradients is not truth
        yield from _judged(of_gradients, name, found, m, emulated, rows=averages)


Emulated = tuple[Truth, dict[str, np.ndarray]]
"""What an emulation gives, and the truth that it is held against."""


def _emulated(
    case: Case, arrays: Arrays, truth: Truth, conditional: bool, backward: bool
) -> Iterator[Emulated]:
    """The two usual ways of dividing by the sum of weights."""
    segment_ids = None
    if arrays.q_segment_ids is not None:
        segment_ids = (arrays.q_segment_ids, arrays.kv_segment_ids)
    for divides_first in (False, True):
        emulation = Emulation(
            *(arrays.q, arrays.k, arrays.v, arrays.ab, segment_ids, arrays.do),
            causal=case.causal,
            sm_scale=case.sm_scale,
            arithmetic=truth.arithmetic,
            divides_first=divides_first,
        )
        found = emulation.forward()
        of_it = truth
        if backward:
            saved = ("o", "lse") if truth.arithmetic.saves_lse else ("o", "l", "m")
            if conditional:
                of_it = truth.given(tuple(found[name] for name in saved))
            found |= emulation.backward(found)
        yield of_it, found


def _judged(
    truth: Truth,
    name: str,
    got: np.ndarray,
    m: np.ndarray | None,
    emulated: list[Emulated],
    *,
    rows: bool = True,
) -> Iterator[Verdict]:
    """The verdicts on one output, whose rows are averages of many errors or are not."""
    yield _within_likely(truth, name, got, m)
    expected = truth.value(name)
    spread = truth.predicted_spread(name, got.dtype.name)
    if m is not None and name == "l":
        true_m, own_m = (np.where(truth.rows, each, 0.0) for each in (truth.value("m"), m))
        at_own_m = np.exp(true_m - own_m)
        expected, spread = expected * at_own_m, spread * at_own_m
    found = Deviations.of(got, expected, spread)
    if not found.judged.any():
        return
    most = limits(truth.arithmetic, name, got.dtype.name)
    worst = tuple(int(i) for i in np.unravel_index(int(found.rows.argmax()), found.rows.shape))
    statistics = {"rms": (found.rms, most.rms), "bias": (found.bias(truth.arithmetic), most.bias)}
    if rows:
        statistics["row"] = (float(found.rows.max()), most.row)
    if name in CAST:
        # The less accurate of two correct ways: a kernel may go either.
        others = [
            Deviations.of(each[name], of_it.value(name), spread).rms for of_it, each in emulated
        ]
        statistics["paired"] = (found.rms / max(others), most.paired)
    for kind, (value, limit) in statistics.items():
        if np.isfinite(limit):
            yield _held(name, kind, value, limit, worst)


_SAYS = {
    "rms": "errors are {value:.4g} times as large as roundings explain",
    "row": "errors are {value:.4g} times as large as roundings explain in one row",
    "bias": "errors follow the truth, {value:.4g} standard deviations beyond chance",
    "paired": "errors are {value:.4g} times as large as those of an emulation",
}


def _held(name: str, kind: str, value: float, limit: float, worst: tuple[int, ...]) -> Verdict:
    """One statistic against its limit. `got` is the statistic, `bound` the limit."""
    ratio = value / limit
    message = ""
    if not ratio <= 1:
        said = _SAYS[kind].format(value=value)
        message = f"is off: {said}, at most {limit:g} in a correct kernel; worst row {list(worst)}"
    return Verdict(f"{name} {kind}", message, bound=limit, got=value, ratio=ratio)


def _within_likely(truth: Truth, name: str, got: np.ndarray, m: np.ndarray | None) -> Verdict:
    bound = truth.likely_bound(name)
    judged = np.isfinite(bound)
    ratio = np.where(judged, truth.ratio(name, got, m, bound=bound), 0.0)
    index = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    wrong = int((ratio > 1).sum())
    message = ""
    if wrong:
        message = f"is beyond 8 standard deviations of roundings in {wrong} of {got.size} elements"
    return Verdict(
        f"{name} likely",
        message,
        index,
        got=float(got[index]),
        expected=float(truth.value(name)[index]),
        bound=float(bound[index]),
        ratio=float(ratio[index]),
    )
