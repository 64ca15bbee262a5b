"""A result held against the truth, so that only a right result passes.

`compare` looks at dtype and shape before it looks at any number, so that nothing is broadcast or
converted; then at finiteness of every element, those it will not judge included; then at the
distance from the truth in units of the oracle's bound. What is not a number fails, on either side.
"""

import dataclasses
import math
from typing import Any

import numpy as np

import oracle

# Outputs whose first axes are [batch, heads, q_len]: a row that is not judged can be left out.
_BY_ROW = frozenset({"o", "l", "m", "lse", "dq", "dab"})
_STATISTICS = frozenset({"l", "m", "lse"})


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One output of one case: its worst element, and how it stands to the bound.

    `index`, `got`, `expected`, `bound` and `ratio` (distance over bound) belong to that element and
    are None where the verdict is about the whole output, or nothing in it could be judged.
    `elements` counts those that were held against a finite bound. `message` is empty if and only
    if the output is right.
    """

    output: str
    message: str = ""
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    ratio: float | None = None
    elements: int = 0

    @property
    def passed(self) -> bool:
        return not self.message

    def to_dict(self) -> dict[str, Any]:
        """As in a failure report: numbers that JSON cannot hold become strings."""
        return {
            "output": self.output,
            "index": None if self.index is None else list(self.index),
            "got": json_number(self.got),
            "expected": json_number(self.expected),
            "bound": json_number(self.bound),
            "ratio": json_number(self.ratio),
            "message": self.message,
        }


def json_number(value: float | None) -> float | str | None:
    """The number itself, or "nan", "inf", "-inf" for what JSON cannot hold."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def compare(
    truth: oracle.Truth,
    output: str,
    got: Any,
    *,
    dtype: str,
    judged_rows: np.ndarray | None = None,
    kernel_m: np.ndarray | None = None,
) -> Verdict:
    """Holds `got` against `truth.value(output)`.

    `dtype` is the name of the dtype that `got` must have. `judged_rows` (bool, [batch, heads,
    q_len]) leaves out rows of the outputs that have rows. Rows left out must still be finite, but
    for the row statistics, which mean nothing there. `kernel_m` is the target's own m, without
    which "l" has no meaning.
    """
    expected = truth.value(output)
    if not isinstance(got, np.ndarray):
        return Verdict(output, f"is {type(got).__name__}, not an array")
    if got.dtype.name != dtype:
        return Verdict(output, f"has dtype {got.dtype.name}, must have {dtype}")
    if got.shape != expected.shape:
        return Verdict(output, f"has shape {got.shape}, must have {expected.shape}")

    judged = np.ones(got.shape, bool)
    if judged_rows is not None and output in _BY_ROW:
        judged &= judged_rows.reshape(judged_rows.shape + (1,) * (got.ndim - 3))
    bound = truth.bound(output)
    exact = got.astype(np.float64)
    infinite = ~np.isfinite(exact)
    if output in _STATISTICS:
        infinite &= judged
    if infinite.any():
        ratio = np.where(infinite, np.inf, 0.0)
        message = f"is not finite in {int(infinite.sum())} of {got.size} elements"
    else:
        ratio = truth.ratio(output, got, kernel_m)
        # A NaN says that truth or bound is none; it must not pass for agreement.
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        judged &= np.isfinite(bound) | (ratio > 0)
        if not judged.any():
            return Verdict(output)
        ratio = np.where(judged, ratio, 0.0)
        wrong = int((ratio > 1.0).sum())
        message = f"is beyond the bound in {wrong} of {got.size} elements" if wrong else ""
    index = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    at_own_m = 1.0
    if output == "l" and kernel_m is not None:
        at_own_m = math.exp(min(float(truth.value("m")[index]) - float(kernel_m[index]), 700.0))
    return Verdict(
        output,
        message,
        index,
        got=float(exact[index]),
        expected=float(expected[index]) * at_own_m,
        bound=float(bound[index]) * at_own_m,
        ratio=float(ratio[index]),
        elements=int(judged.sum()),
    )


def saved_of_unseen(truth: oracle.Truth, output: str, got: np.ndarray) -> Verdict:
    """Holds a row statistic, of the truth's shape, where rows see no key: l = 0 and m = -inf."""
    expected = truth.value(output)
    wrong = ~truth.rows & (got != expected)
    if not wrong.any():
        return Verdict(output)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return Verdict(
        output,
        f"must say that a row sees no key, and does not in {int(wrong.sum())} rows",
        index,
        got=float(got[index]),
        expected=float(expected[index]),
        bound=0.0,
        ratio=math.inf,
    )


def raised(error: BaseException, during: str) -> Verdict:
    """The verdict on a call that had to be accepted and raised instead."""
    text = " ".join(str(error).split())
    return Verdict("call", f"{during} raised {type(error).__name__}: {text[:500]}")
