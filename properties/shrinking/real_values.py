"""Cases whose arrays are real tensors: parts of them, then plainer numbers, then zeros.

Each candidate's arrays are written to a folder under the hash of what they hold, beside which its
case names them; the file of one that is not taken is removed.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from properties.cases import tensors
from properties.cases.case import Arrays, Blocks, Case, Run, Segments
from properties.shrinking import start
from properties.shrinking.fitting import fitted_blocks, with_fitted_parameters
from properties.shrinking.moves import Move, Moves

_MOST_HEADS = 8
_MOST_CHUNKS = 8
_NUMBERS = ("q", "k", "v", "ab", "do")


def starts(case: Case, folder: Path | None) -> Iterator[tuple[str, Case]]:
    """What to run until something fails: the same call on other values, then parts of it."""
    assert folder is not None
    if start.cheap(case):
        yield "as reported", case
        return
    ordinary = dataclasses.replace(case, tensors=None, values="normal", seed=0)
    for what, each in start.starts(ordinary):
        # The last is as large as the case.
        if not start.slow(each):
            yield f"ordinary values, {what}", each
    for batch in range(case.batch):
        for head in range(case.heads):
            if batch * case.heads + head < _MOST_HEADS:
                part = _part(case, batch=slice(batch, batch + 1), heads=slice(head, head + 1))
                yield f"batch row {batch}, head {head}", _written(folder, *part)
    yield "as reported", case


def groups(folder: Path) -> list[Callable[[Case], Moves]]:
    """Groups of moves as in `moves.groups`, of cases with tensors."""

    def kept(moves: Callable[[Case], Iterator[tuple[str, str, str, Case, Arrays]]]) -> Any:
        def written(case: Case) -> Moves:
            for feature, before, after, changed, arrays in moves(case):
                candidate = _written(folder, changed, arrays)
                yield Move(feature, before, after, candidate)
                # Reached only where the candidate was not taken.
                if candidate.tensors != case.tensors:
                    (folder / str(candidate.tensors)).unlink()

        return written

    return [_ordinary, *map(kept, (_parts, _features, _plainer, _zeros))]


def _ordinary(case: Case) -> Moves:
    ordinary = dataclasses.replace(case, tensors=None, values="normal", seed=0)
    yield Move("values", "of the file", "normal", ordinary)


Changes = Iterator[tuple[str, str, str, Case, Arrays]]
"""Feature, what it was and becomes, and the case with its arrays."""

_AXES = ("batch", "heads", "q_len", "kv_len", "head_dim")


def _parts(case: Case) -> Changes:
    """Fewer batch rows, heads, queries, keys, numbers in a head: one, a half, all but a part."""
    for name in _AXES:
        size = getattr(case, name)
        for begin, end in _pieces(size):
            part = slice(begin, end)
            yield name, str(size), f"{begin} to {end - 1}", *_part(case, **{name: part})


def _pieces(size: int) -> list[tuple[int, int]]:
    """Contiguous pieces, smallest first: what is left when one end is cut off, down to one."""
    pieces = []
    for length in sorted({1, size // 4, size // 2, size - size // 4, size - size // 8, size - 1}):
        if 0 < length < size:
            pieces += [(0, length), (size - length, size)]
    return list(dict.fromkeys(pieces))


def _part(case: Case, **parts: slice) -> tuple[Case, Arrays]:
    """The case of those parts of its arrays, by axis."""
    arrays = case.arrays()
    at = {name: parts.get(name, slice(None)) for name in _AXES}
    of_queries = (at["batch"], at["heads"], at["q_len"], at["head_dim"])
    of_keys = (at["batch"], at["heads"], at["kv_len"], at["head_dim"])
    cut = Arrays(
        q=arrays.q[of_queries],
        k=arrays.k[of_keys],
        v=arrays.v[of_keys],
        ab=_taken(arrays.ab, (at["batch"], at["heads"], at["q_len"], at["kv_len"])),
        q_segment_ids=_taken(arrays.q_segment_ids, (at["batch"], at["q_len"])),
        kv_segment_ids=_taken(arrays.kv_segment_ids, (at["batch"], at["kv_len"])),
        do=arrays.do[of_queries],
    )
    batch, heads, q_len, head_dim = cut.q.shape
    sizes = dict(zip(_AXES, (batch, heads, q_len, cut.k.shape[2], head_dim), strict=True))
    blocks = case.block_sizes
    if blocks is not None:
        blocks = Blocks(**fitted_blocks(blocks.fields(), case, sizes, scale=False))
    segments = segments_of(cut.q_segment_ids, cut.kv_segment_ids)
    changed = dataclasses.replace(case, **sizes, block_sizes=blocks, segments=segments)
    return with_fitted_parameters(changed, case), cut


def _taken(array: np.ndarray | None, at: tuple[slice, ...]) -> np.ndarray | None:
    return None if array is None else array[at]


def segments_of(q_ids: np.ndarray | None, kv_ids: np.ndarray | None) -> Segments | None:
    """Segment ids [batch, length] of queries and keys as the runs that a case lists."""
    if q_ids is None or kv_ids is None:
        return None
    return Segments(q_ids.dtype.name, *(tuple(map(_runs, ids)) for ids in (q_ids, kv_ids)))


def _runs(ids: np.ndarray) -> tuple[Run, ...]:
    ends = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    begins = [0, *ends[:-1]]
    return tuple((int(ids[begin]), end - begin) for begin, end in zip(begins, ends, strict=True))


def _features(case: Case) -> Changes:
    """Features that go altogether."""
    arrays = case.arrays()
    if case.block_sizes is not None:
        plain = dataclasses.replace(case, block_sizes=None)
        yield "block sizes", "explicit", "default", plain, arrays
    if case.segments is not None:
        without = arrays._replace(q_segment_ids=None, kv_segment_ids=None)
        yield "segments", "yes", "none", _fitted(case, segments=None), without
    if case.bias is not None:
        yield "bias", "yes", "none", _fitted(case, bias=None), arrays._replace(ab=None)
    if case.causal:
        yield "causal", "yes", "no", dataclasses.replace(case, causal=False), arrays
    if case.sm_scale != 1.0:
        yield "scale", str(case.sm_scale), "1", dataclasses.replace(case, sm_scale=1.0), arrays


def _fitted(case: Case, **changes: Any) -> Case:
    return with_fitted_parameters(dataclasses.replace(case, **changes), case)


def _plainer(case: Case) -> Changes:
    """Arrays that become zero, integers, or multiples of 1/8."""
    arrays = case.arrays()
    for name in _NUMBERS:
        array = getattr(arrays, name)
        if array is None:
            continue
        for after, unit in (("zero", 0.0), ("integers", 1.0), ("multiples of 1/8", 0.125)):
            exact = array.astype(np.float64)
            rounded = np.round(exact / unit) * unit if unit else np.zeros_like(exact)
            if not np.array_equal(rounded, exact):
                changed = arrays._replace(**{name: rounded.astype(array.dtype)})
                yield name, "as it is", after, case, changed
            elif unit:
                # Rougher already than what follows.
                break


def _zeros(case: Case) -> Changes:
    """Fewer entries that are not zero: a part of those in one array at a time."""
    arrays = case.arrays()
    for name in _NUMBERS:
        array = getattr(arrays, name)
        if array is None:
            continue
        nonzero = np.flatnonzero(array)
        count = len(nonzero)
        parts = 2
        while parts <= min(2 * _MOST_CHUNKS, 2 * count):
            for chunk in np.array_split(nonzero, min(parts, count)):
                fewer = array.copy()
                fewer.flat[chunk] = 0
                changed = arrays._replace(**{name: fewer})
                yield f"non-zeros of {name}", str(count), str(count - len(chunk)), case, changed
            parts *= 4


def _written(folder: Path, case: Case, arrays: Arrays) -> Case:
    digest = hashlib.sha256()
    for name, array in arrays._asdict().items():
        if array is not None:
            digest.update(f"{name} {array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    name = f"{digest.hexdigest()[:16]}.npz"
    tensors.write(folder / name, arrays._asdict())
    return dataclasses.replace(case, tensors=name, folder=folder)
