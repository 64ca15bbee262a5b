"""What may become simpler in a case, one thing at a time, in the order in which it is tried.

Every move strictly simplifies (a dimension shrinks, a feature goes, an option becomes an earlier
one of its list), so that reducing ends. Groups of moves are tried in turn, by what they save.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from oracle.contract import K_MAJOR_BLOCKS, MINOR_OF, Q_BLOCKS
from properties.cases import values
from properties.cases.case import DTYPES, Blocks, Case, Run, Segments
from properties.drawing.space import LANES
from properties.shrinking import parameters
from properties.shrinking.fitting import resized, with_fitted_parameters


@dataclass(frozen=True)
class Move:
    """A simpler case, and which feature of it was what and became what."""

    feature: str
    before: str
    after: str
    case: Case

    def __str__(self) -> str:
        return f"{self.feature}: {self.before} -> {self.after}"


Moves = Iterator[Move]

_COUNTS = (1, 2, 3, 8, 64)
_LENGTHS = (1, 2, 3, 8, 9, LANES, LANES + 1, 2 * LANES, 2 * LANES + 1, 3 * LANES, 4 * LANES)
USUAL = dict.fromkeys(("batch", "heads", "head_dim"), _COUNTS) | dict.fromkeys(
    ("q_len", "kv_len"), _LENGTHS
)
"""Of each dimension the sizes at which faults begin to show: a neighbour, a tile, a tail."""

_SCALES = (1.0, 0.5, -1.0, 0.0)


def _to(case: Case, feature: str, before: object, after: object, **fields: Any) -> Moves:
    if before != after:
        changed = with_fitted_parameters(dataclasses.replace(case, **fields), case)
        yield Move(feature, str(before), str(after), changed)


def features(case: Case) -> Moves:
    """Features that go altogether."""
    if case.block_sizes is not None:
        yield from _to(case, "block sizes", "explicit", "default", block_sizes=None)
    if case.segments is not None:
        yield from _to(case, "segments", "yes", "none", segments=None)
    if case.bias is not None:
        yield from _to(case, "bias", case.bias.family, "none", bias=None)
    yield from _to(case, "causal", case.causal, False, causal=False)


def _options(case: Case) -> Moves:
    """Options of a call that become earlier ones, and the values of its arrays."""
    rank = _SCALES.index(case.sm_scale) if case.sm_scale in _SCALES else len(_SCALES)
    for scale in _SCALES[:rank]:
        yield from _to(case, "scale", case.sm_scale, scale, sm_scale=scale)
    yield from _to(case, "dtype", case.dtype, DTYPES[0], dtype=DTYPES[0])
    families = list(values.FAMILIES)
    # A family between would say no more of why it fails.
    for family in families[: min(families.index(case.values), 2)]:
        yield from _to(case, "values", case.values, family, values=family)
    bias = case.bias
    if bias is not None:
        plain = dataclasses.replace(bias, dtype=DTYPES[0])
        yield from _to(case, "bias dtype", bias.dtype, DTYPES[0], bias=plain)
        families = list(values.BIAS_FAMILIES)
        for family in families[: min(families.index(bias.family), 2)]:
            other = dataclasses.replace(bias, family=family)
            yield from _to(case, "bias", bias.family, family, bias=other)
    yield from _to(case, "seed", case.seed, 0, seed=0)


def _counts(case: Case) -> Moves:
    """Fewer batch rows, heads, and numbers in a head."""
    for name in ("batch", "heads", "head_dim"):
        for size in _in_turn(_smaller(case, name)):
            yield from _resize(case, **{name: size})


def lengths(case: Case) -> Moves:
    """Fewer queries and keys; where there are as many of both, fewer of both."""
    for name in ("q_len", "kv_len"):
        for size in _in_turn(_smaller(case, name)):
            yield from _resize(case, **{name: size})
    if case.q_len == case.kv_len:
        for size in _in_turn(_smaller(case, "kv_len")):
            yield from _resize(case, q_len=size, kv_len=size)


def _smaller(case: Case, name: str) -> list[int]:
    """Smaller sizes of a dimension: the usual ones, and a half, a quarter and so on of it."""
    size, usual = getattr(case, name), USUAL[name]
    below = {each for each in usual if each < size}
    part = size // 2
    while part > usual[-1]:
        below.add(part)
        part //= 2
    if name == "kv_len" and _divides_keys(case):
        # No other number of keys can be had in blocks: 1 stands for all that need whole ones.
        below = {each for each in below if each == 1 or each % LANES == 0}
    return sorted(below)


def _divides_keys(case: Case) -> bool:
    fields = case.block_sizes.fields() if case.block_sizes else {}
    return any(fields[name] < case.kv_len for name in fields if name.startswith("block_k"))


def _in_turn(sizes: list[int]) -> list[int]:
    """The least, then from the middle half of the way to the largest, and again.

    What fails begins anew with the sizes below, so that few are tried though all are considered.
    """
    order = sizes[:1]
    place = len(sizes) // 2
    while place < len(sizes):
        order.append(sizes[place])
        place += max((len(sizes) - place) // 2, 1)
    return list(dict.fromkeys(order))


def _resize(case: Case, **sizes: int) -> Moves:
    before = ", ".join(str(getattr(case, name)) for name in sizes)
    after = ", ".join(map(str, sizes.values()))
    seen = []
    for scale_blocks in (False, True):
        changed = resized(case, scale_blocks=scale_blocks, **sizes)
        if changed not in seen:
            seen.append(changed)
            yield Move(" and ".join(sizes), before, after, changed)


def _blocks(case: Case) -> Moves:
    """Fewer blocks that are not the whole: all of a kernel at once, then one after another."""
    blocks = case.block_sizes
    if blocks is None:
        return
    whole = _whole_blocks(case, blocks)
    fields = blocks.fields()
    if blocks.backward and "gradient_of" not in case.parameters:
        forward = {name: size for name, size in fields.items() if not name.endswith(_BACKWARD)}
        yield from _to(case, "backward blocks", "yes", "none", block_sizes=Blocks(**forward))
    for ending in ("", "_dkv", "_dq"):
        kernel = {name for name in fields if name.endswith(ending)}
        if not ending:
            kernel = {name for name in fields if not name.endswith(_BACKWARD)}
        if not kernel:
            continue
        changed = fields | {name: whole[name] for name in kernel}
        name = f"blocks of {ending.removeprefix('_') or 'the forward'}"
        if changed != fields:
            yield from _to(
                case, name, _some(fields, kernel), "whole", block_sizes=Blocks(**changed)
            )
    for name, size in fields.items():
        changed = fields | {name: whole[name]}
        for minor, major in MINOR_OF.items():
            # A minor block that was the whole of its major one stays that.
            if major == name and minor in fields and fields[minor] == size:
                changed[minor] = whole[minor]
        if changed != fields and _fit(changed):
            yield from _to(case, name, size, whole[name], block_sizes=Blocks(**changed))


_BACKWARD = ("_dkv", "_dq")


def _some(fields: dict[str, int], kernel: set[str]) -> str:
    return ", ".join(f"{name} {fields[name]}" for name in sorted(kernel))


def _whole_blocks(case: Case, blocks: Blocks) -> dict[str, int]:
    """Every block as large as what it divides."""
    whole = {"block_b": 1}
    for name in blocks.fields():
        if name in Q_BLOCKS or MINOR_OF.get(name) in Q_BLOCKS:
            whole[name] = case.q_len
        elif name in K_MAJOR_BLOCKS or MINOR_OF.get(name) in K_MAJOR_BLOCKS:
            whole[name] = case.kv_len
    return whole


def _fit(fields: dict[str, int]) -> bool:
    return all(
        fields[major] % fields[minor] == 0 for minor, major in MINOR_OF.items() if minor in fields
    )


def _segments(case: Case) -> Moves:
    """Fewer segments, alike in all rows, with plain ids."""
    segments = case.segments
    if segments is None:
        return
    rows = tuple(zip(segments.q, segments.kv, strict=True))
    alike = Segments(segments.dtype, segments.q[:1] * case.batch, segments.kv[:1] * case.batch)
    if len(set(rows)) > 1:
        yield from _to(case, "segments", "rows differ", "all as the first", segments=alike)
    if any(len(q) + len(kv) > 2 for q, kv in rows):
        apart = (((0, case.q_len),),) * case.batch, (((1, case.kv_len),),) * case.batch
        disjoint = Segments("int32", *apart)
        yield from _to(case, "segments", "some meet", "disjoint", segments=disjoint)
    for side in ("q", "kv"):
        for place in range(max(len(row) for row in getattr(segments, side)) - 1):
            changed: dict[str, Any] = {
                side: tuple(_joined(row, place) for row in getattr(segments, side))
            }
            fewer = dataclasses.replace(segments, **changed)
            yield from _to(case, f"segments of {side}", place + 2, "fewer", segments=fewer)
    ids = sorted({label for row in (*segments.q, *segments.kv) for label, _ in row})
    plain = dict(zip(ids, range(len(ids)), strict=True))
    counting = Segments("int32", _renamed(segments.q, plain), _renamed(segments.kv, plain))
    if counting != segments:
        yield from _to(case, "segment ids", ids[:8], "from 0, int32", segments=counting)
    as_int32 = dataclasses.replace(segments, dtype="int32")
    yield from _to(case, "segment dtype", segments.dtype, "int32", segments=as_int32)


def _joined(runs: tuple[Run, ...], place: int) -> tuple[Run, ...]:
    """A run that takes its neighbour's positions; nothing where there is none."""
    if place + 1 >= len(runs):
        return runs
    (label, first), (_, second) = runs[place : place + 2]
    return (*runs[:place], (label, first + second), *runs[place + 2 :])


def _renamed(rows: tuple[tuple[Run, ...], ...], names: dict[int, int]) -> tuple:
    return tuple(tuple((names[label], count) for label, count in row) for row in rows)


def _parameters(name: str) -> Callable[[Case], Moves]:
    def moves(case: Case) -> Moves:
        simplest = parameters.simplest(name, case)
        if simplest is not None and case.parameters != simplest:
            before, after = (str(dict(each))[:60] for each in (case.parameters, simplest))
            yield Move("parameters", before, after, dataclasses.replace(case, parameters=simplest))

    return moves


def groups(name: str) -> list[Callable[[Case], Moves]]:
    """The groups of moves for cases of the property `name`, in the order to try them.

    Lengths before features: fewer rows in explicit blocks say more than more rows without.
    """
    return [
        _counts,
        lengths,
        features,
        _parameters(name),
        _options,
        _blocks,
        _segments,
    ]
