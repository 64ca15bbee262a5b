"""A case with other dimensions: segments, blocks and parameters follow, and stay legal."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from oracle.contract import K_MAJOR_BLOCKS, MINOR_OF, Q_BLOCKS
from properties.cases.case import Blocks, Case, Run, Segments
from properties.drawing.space import LANES, SUBLANES
from properties.shrinking import parameters


def resized(case: Case, *, scale_blocks: bool = False, **sizes: int) -> Case:
    """The case with some of batch, heads, q_len, kv_len and head_dim changed.

    Runs of segments keep their share of the length, as long as there is a position for each.
    Blocks keep their size where it is still legal; with `scale_blocks` they keep their number. A
    block that is the whole length stays that. Parameters that speak of positions move along.
    """
    new: dict[str, Any] = {name: getattr(case, name) for name in _SIZES} | sizes
    segments, blocks = case.segments, case.block_sizes
    if segments is not None:
        q, kv = (
            tuple(_fitted_runs(runs, new[length]) for runs in rows[: new["batch"]])
            for rows, length in ((segments.q, "q_len"), (segments.kv, "kv_len"))
        )
        segments = Segments(segments.dtype, q, kv)
    if blocks is not None:
        fields = fitted_blocks(blocks.fields(), case, new, scale=scale_blocks)
        blocks = Blocks(**fields)
    changes: dict[str, Any] = sizes | {"segments": segments, "block_sizes": blocks}
    changed = dataclasses.replace(case, **changes)
    return with_fitted_parameters(changed, case)


_SIZES = ("batch", "heads", "q_len", "kv_len", "head_dim")


def _fitted_runs(runs: tuple[Run, ...], length: int) -> tuple[Run, ...]:
    """As many of the runs as there are positions, evenly chosen, each with its share of them."""
    total = sum(count for _, count in runs)
    if total == length:
        return runs
    if len(runs) > length:
        last = max(length - 1, 1)
        runs = tuple(runs[i * (len(runs) - 1) // last] for i in range(length))
        total = sum(count for _, count in runs)
    fitted: list[Run] = []
    begin = end = 0
    for number, (label, count) in enumerate(runs, start=1):
        end += count
        least, most = begin + 1, length - (len(runs) - number)
        stop = length if number == len(runs) else min(max(end * length // total, least), most)
        if fitted and fitted[-1][0] == label:
            fitted[-1] = (label, fitted[-1][1] + stop - begin)
        else:
            fitted.append((label, stop - begin))
        begin = stop
    return tuple(fitted)


def fitted_blocks(
    fields: Mapping[str, int], case: Case, new: Mapping[str, int], *, scale: bool
) -> dict[str, int]:
    """Blocks of `case` that are legal at the new dimensions, by the rules of the contract."""
    fitted = {"block_b": min(fields["block_b"], new["batch"])}
    for name, block in fields.items():
        if name in Q_BLOCKS:
            fitted[name] = _over_queries(block, case.q_len, new["q_len"], scale)
        elif name in K_MAJOR_BLOCKS:
            fitted[name] = _over_keys(block, case.kv_len, new["kv_len"], scale)
    for minor, major in MINOR_OF.items():
        if minor not in fields:
            continue
        if minor == "block_q_dkv":
            fitted[minor] = _divisor(fields[minor], fields[major], fitted[major], 1, scale)
        else:
            fitted[minor] = _divisor(fields[minor], fields[major], fitted[major], LANES, scale)
    return {name: fitted[name] for name in fields}


def _over_queries(block: int, length: int, new: int, scale: bool) -> int:
    if block >= length:
        return new
    if scale:
        each = math.ceil(new / math.ceil(length / block))
        block = math.ceil(each / SUBLANES) * SUBLANES
    return min(block, new)


def _over_keys(block: int, length: int, new: int, scale: bool) -> int:
    return _divisor(block, length, new, LANES, scale)


def _divisor(block: int, length: int, new: int, unit: int, scale: bool) -> int:
    """A part of `new` in whole units, or all of it: `block`, or as many parts as it made."""
    if block >= length:
        return new
    if not scale and block < new and new % block == 0 and block % unit == 0:
        return block
    parts = max(length // block, 1)
    return next(
        (new // count for count in range(parts, 1, -1) if new % (count * unit) == 0),
        new,
    )


def with_fitted_parameters(case: Case, before: Case) -> Case:
    """The case with the parameters of `before`, in so far as they can be kept, made to fit it."""
    if case.breaks is not None and case.parameters:
        return dataclasses.replace(case, parameters=_fitted_way(case))
    fitted = {}
    for name, value in case.parameters.items():
        fit = _FITS.get(name)
        kept = value if fit is None else fit(value, case, before)
        if kept is not None:
            fitted[name] = kept
    return dataclasses.replace(case, parameters=fitted)


def _fitted_way(case: Case) -> dict[str, Any]:
    """Of the ways to break the rule the one that has most in common with the case's parameters."""
    wanted = dict(case.parameters)

    def common(way: Mapping[str, Any]) -> int:
        return sum(way.get(name) == value for name, value in wanted.items())

    return max(parameters.ways(case), key=common, default=wanted)


def _of_present_arrays(value: Any, case: Case, before: Case) -> Any:
    """Without the names of arrays that the case has no longer; nothing where none is left."""
    absent = [] if case.bias is not None else ["ab"]
    if case.segments is None:
        absent += ["q_segment_ids", "kv_segment_ids"]
    if isinstance(value, list):
        return [name for name in value if name not in absent] or None
    return {name: axis for name, axis in value.items() if name not in absent} or None


def _order(value: Any, count: int) -> Any:
    return [place for place in value if place < count]


def _copy(value: Any, case: Case, before: Case) -> Any:
    return value if max(value, default=0) < case.batch else [0, case.batch - 1]


def _cut(value: Any, case: Case, before: Case) -> Any:
    if isinstance(value, int):
        return max(min(value, case.batch - 1), 1)
    lengths = ((case.q_len, before.q_len), (case.kv_len, before.kv_len))
    return [
        max(min(cut * new // old, new - 1), 1)
        for cut, (new, old) in zip(value, lengths, strict=True)
    ]


def _labels(value: Any, case: Case, before: Case) -> Any:
    """The images of those ids that still occur."""
    images = dict(zip(_ids(before), value, strict=False))
    return [images[label] for label in _ids(case) if label in images]


def _ids(case: Case) -> list[int]:
    if case.segments is None:
        return []
    rows = (*case.segments.q, *case.segments.kv)
    return sorted({label for row in rows for label, _ in row})


def _other_blocks(value: Any, case: Case, before: Case) -> Any:
    if not isinstance(value, dict) or case.configuration[:4] == before.configuration[:4]:
        return value
    new = {name: getattr(case, name) for name in _SIZES}
    return fitted_blocks(value, before, new, scale=True)


_FITS: dict[str, Callable[[Any, Case, Case], Any]] = {
    "gradient_of": _of_present_arrays,
    "axes": _of_present_arrays,
    "row": lambda value, case, before: min(value, case.q_len - 1),
    "batch_order": lambda value, case, before: _order(value, case.batch),
    "head_order": lambda value, case, before: _order(value, case.heads),
    "copy": _copy,
    "cut": _cut,
    "labels": _labels,
    "other_blocks": _other_blocks,
}
"""By name of the parameter: what becomes of its value, None to leave it out.

Properties say in their documentation what their parameters mean; those that are not here say
nothing of dimensions. What does not fit after all is for the property to refuse.
"""
