"""Where on the grid of queries and keys a failing result is wrong, as data for a drawing."""

import math
import operator
from typing import Any

import numpy as np

from oracle.attention import visibility
from properties.cases.case import Arrays, Case
from properties.judging.judge import AS_SAVED, truth_of, without_masked_cotangents
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

MOST_LOGITS = 2_000_000
"""Cases with more are not drawn: their truth takes seconds."""

# A drawing has at most so many cells a side; where a case has more positions they share cells.
_CELLS = 64

# What the elements of an output belong to: a query, a key, or a pair of both.
_AXES = {
    **dict.fromkeys(("o", "saved_o", "l", "m", "lse", "dq"), "query"),
    **dict.fromkeys(("dk", "dv"), "key"),
    "dab": "pair",
}
_STATISTICS = {"l": 1, "m": -1, "lse": -1}  # their places among the residuals


def drawing(case: Case, target: Target, result: Result) -> dict[str, Any]:
    """The mask of the head that the worst element is in, and what is wrong there.

    `cell` positions share a cell. `visible` has a string for each row of cells: "#" all keys are
    seen, "." none, "+" some. `wrong` lists rows, columns or [row, column] of cells, as `axis` is
    "query", "key" or "pair"; `count` of `elements` elements are wrong there. Only the worst element
    is known, and count is None, where a property compares calls with each other.
    `blocks` are those of queries and keys that the kernel was given. Raises ValueError if the case
    is too large.
    """
    logits = case.batch * case.heads * case.q_len * case.kv_len
    if logits > MOST_LOGITS:
        raise ValueError(f"{logits:,} logits are too many to draw; the limit is {MOST_LOGITS:,}")
    verdict = result.failure
    assert verdict is not None, "only what fails is drawn"
    arrays = case.arrays()
    index = verdict.index or ()
    axis = _AXES.get(verdict.output)
    if axis is None or not _fits(case, axis, index):
        axis = None
    batch, head = index[:2] if axis else (0, 0)
    cell = math.ceil(max(case.q_len, case.kv_len) / _CELLS)
    found: dict[str, Any] = {
        "output": verdict.output,
        "batch": batch,
        "head": head,
        "q_len": case.q_len,
        "kv_len": case.kv_len,
        "cell": cell,
        "visible": _visible(case, arrays, batch, head, cell),
        "axis": axis,
        "blocks": _blocks(case, verdict.output),
    }
    if axis is None:
        return found
    wrong = _wrong(case, target, result, verdict, arrays)
    if wrong is None or not wrong[index]:
        places = {_place(axis, index)}
        found |= {"count": None, "elements": None}
    else:
        here = wrong[batch, head]
        places = {_place(axis, (batch, head, *at)) for at in np.argwhere(here)}
        found |= {"count": int(here.sum()), "elements": here.size}
        elsewhere = wrong.any(axis=tuple(range(2, wrong.ndim)))
        found["heads"] = [[int(b), int(h)] for b, h in np.argwhere(elsewhere)]
    cells = sorted({tuple(position // cell for position in place) for place in places})
    found["wrong"] = [list(at) if axis == "pair" else at[0] for at in cells]
    return found


def _fits(case: Case, axis: str, index: tuple[int, ...]) -> bool:
    """Whether an index is one of this call: a property may have made it of a larger one."""
    places = {"query": (case.q_len,), "key": (case.kv_len,), "pair": (case.q_len, case.kv_len)}
    lengths = (case.batch, case.heads, *places[axis])
    return len(index) >= len(lengths) and all(map(operator.lt, index, lengths))


def _place(axis: str, index: Any) -> tuple[int, ...]:
    return tuple(int(at) for at in (index[2:4] if axis == "pair" else index[2:3]))


def _visible(case: Case, arrays: Arrays, batch: int, head: int, cell: int) -> list[str]:
    segment_ids = None
    if arrays.q_segment_ids is not None:
        segment_ids = (arrays.q_segment_ids, arrays.kv_segment_ids)
    ab = None if arrays.ab is None else arrays.ab.astype(np.float64)
    lengths = (case.q_len, case.kv_len)
    seen = visibility(lengths, ab, segment_ids, case.causal)
    grid = np.broadcast_to(seen, (case.batch, case.heads, *lengths))[batch, head]
    parts = [
        [grid[row : row + cell, key : key + cell] for key in range(0, case.kv_len, cell)]
        for row in range(0, case.q_len, cell)
    ]
    return [
        "".join("#" if part.all() else "+" if part.any() else "." for part in row) for row in parts
    ]


def _blocks(case: Case, output: str) -> list[int] | None:
    """The blocks of queries and of keys of the kernel that computes an output."""
    if case.block_sizes is None:
        return None
    given = case.block_sizes.fields()
    of_queries, of_keys = {
        "dk": ("block_q_dkv", "block_k_dkv"),
        "dv": ("block_q_dkv", "block_k_dkv"),
        "dq": ("block_q_dq", "block_k_dq"),
        "dab": ("block_q_dq", "block_k_dq"),
    }.get(output, ("block_q", "block_k"))
    return [given[of_queries], given[of_keys]] if of_queries in given else None


def _wrong(
    case: Case, target: Target, result: Result, verdict: Verdict, arrays: Arrays
) -> np.ndarray | None:
    """Which elements of the output are wrong, None where only the property itself can tell."""
    if result.name not in ("outputs", "gradients", "refusals") or not isinstance(result.got, dict):
        return None
    output, residuals = verdict.output, result.got.get("residuals", ())
    saved = output == "o" and verdict.message.startswith(AS_SAVED)
    if output in _STATISTICS:
        got = residuals[_STATISTICS[output]]
    else:
        got = residuals[0] if saved else result.got[output]
    truth = truth_of(case, target, result.mode, arrays)
    if target.masked_rows == "any":
        truth = truth_of(case, target, result.mode, without_masked_cotangents(arrays, truth))
    if output.startswith("d") and residuals:
        truth = truth.given((result.got["o"], *residuals[1:]))
    if got.shape != truth.value(output).shape:
        return None
    wrong = ~(truth.ratio(output, got, residuals[-1] if residuals else None) <= 1)
    rows = truth.rows if output in _STATISTICS or target.masked_rows == "any" else None
    if rows is not None and _AXES[output] == "query":
        wrong &= rows.reshape(rows.shape + (1,) * (wrong.ndim - rows.ndim))
    return wrong | ~np.isfinite(got.astype(np.float64)) if output not in _STATISTICS else wrong
