"""What of a failing case is essential to it: one feature at a time is dropped or changed.

The case fails in the same way without it: the feature is not essential. It holds: it is.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from properties.cases.case import Blocks, Case, CaseError, Run, Segments
from properties.judging.result import Result


def explain(
    case: Case, check: Callable[[Case], Result], same: Callable[[Result], bool], deadline: float
) -> list[dict[str, Any]]:
    """For every change the feature, what it was and became, and what came of it.

    `same` tells whether a result that fails is the failure in question. Outcomes are "fails",
    "fails otherwise", "holds", "refused", "does not apply" (the property has no such case), and
    "not tried" for those after `deadline` (of `time.monotonic`).
    """
    found = []
    for feature, before, after, changed in changes(case):
        outcome = "not tried" if time.monotonic() > deadline else _outcome(changed, check, same)
        found.append({"feature": feature, "from": before, "to": after, "outcome": outcome})
    return found


def _outcome(case: Case, check: Callable[[Case], Result], same: Callable[[Result], bool]) -> str:
    try:
        result = check(case)
    except CaseError:
        return "does not apply"
    if result.failure is not None:
        return "fails" if same(result) else "fails otherwise"
    if result.skipped:
        return "does not apply"
    return "refused" if result.refused else "holds"


Change = tuple[str, str, str, Case]
"""Feature, its value, the new value, and the case with that."""


def changes(case: Case) -> Iterator[Change]:
    """The case with one feature simpler, or a length off by one."""

    def to(feature: str, before: object, after: object, **fields: Any) -> Iterator[Change]:
        if before != after:
            yield feature, str(before), str(after), dataclasses.replace(case, **fields)

    bias, segments = case.bias, case.segments
    if case.causal:
        yield from to("causal", "yes", "no", causal=False)
    if bias is not None:
        yield from to("bias", bias.family, "none", bias=None)
        normal = dataclasses.replace(bias, family="normal")
        yield from to("bias", bias.family, "normal", bias=normal)
        as_float32 = dataclasses.replace(bias, dtype="float32")
        yield from to("bias dtype", bias.dtype, "float32", bias=as_float32)
    if segments is not None:
        yield from to("segments", "yes", "none", segments=None)
        as_int32 = dataclasses.replace(segments, dtype="int32")
        yield from to("segment dtype", segments.dtype, "int32", segments=as_int32)
    if case.block_sizes is not None:
        yield from to("block sizes", "explicit", "default", block_sizes=None)
    yield from to("scale", case.sm_scale, 1.0, sm_scale=1.0)
    yield from to("values", case.values, "normal", values="normal")
    yield from to("seed", case.seed, case.seed + 1, seed=case.seed + 1)
    other = "float32" if case.dtype == "bfloat16" else "bfloat16"
    yield from to("dtype", case.dtype, other, dtype=other)
    yield from to("heads", case.heads, 1, heads=1)
    if case.batch > 1:
        yield "batch", str(case.batch), "1", _one_batch_row(case)
    yield from to("head_dim", case.head_dim, 1, head_dim=1)
    if case.block_sizes is None:
        for name in ("q_len", "kv_len"):
            length = getattr(case, name)
            for other_length in (length - 1, length + 1):
                if other_length:
                    changed = _with_length(case, name, other_length)
                    yield name, str(length), str(other_length), changed


def _one_batch_row(case: Case) -> Case:
    segments, blocks = case.segments, case.block_sizes
    if segments is not None:
        segments = Segments(segments.dtype, segments.q[:1], segments.kv[:1])
    if blocks is not None:
        blocks = Blocks(**(blocks.fields() | {"block_b": 1}))
    return dataclasses.replace(case, batch=1, segments=segments, block_sizes=blocks)


def _with_length(case: Case, name: str, length: int) -> Case:
    """The case with another q_len or kv_len; segments end earlier, or the last one later."""
    segments = case.segments
    rows: dict[str, Any] = {}
    if segments is not None:
        side = "q" if name == "q_len" else "kv"
        rows[side] = tuple(_cut(row, length) for row in getattr(segments, side))
        segments = dataclasses.replace(segments, **rows)
    changed: dict[str, Any] = {name: length, "segments": segments}
    return dataclasses.replace(case, **changed)


def _cut(runs: tuple[Run, ...], length: int) -> tuple[Run, ...]:
    found: list[Run] = []
    for number, run_length in runs:
        taken = min(run_length, length - sum(each for _, each in found))
        if taken:
            found.append((number, taken))
    number, last = found[-1]
    return (*found[:-1], (number, last + length - sum(each for _, each in found)))
