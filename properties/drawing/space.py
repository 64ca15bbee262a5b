"""The space of cases: which options each field of a case has, given the fields drawn before it.

Small scope: at most 3 x 2 heads, and two or three blocks a dimension, since faults in loops,
masks and index arithmetic need no more, and small cases are cheap and explain themselves.

One function, `draw_case`, walks the options in a fixed order (dimensions, flags, scale, bias,
segments, blocks, values, seed) and leaves every choice to its caller: a Hypothesis draw, a random
number, a search for unvisited pairs.  Every list is ordered simplest first, so that choosing lower
indices is simplifying, and holds legal options only, so that nothing is ever thrown away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from properties.cases import values
from properties.cases.case import DTYPES, SEGMENT_DTYPES, Bias, Blocks, Case, Run, Segments

T = TypeVar("T")


class Choose(Protocol):
    """Picks one of a non-empty list of options; index 0 is the simplest."""

    def __call__(self, options: Sequence[T], /) -> T: ...


LANES, SUBLANES = 128, 8
"""A TPU's tile: blocks of keys come in multiples of 128, blocks of queries in multiples of 8."""

Q_LENGTHS = (
    *(1, 2, 7, 8, 9, 17, 24, 40),
    *(127, 128, 129),
    *(256, 384),
    *(200, 255, 257, 383),
)
KV_LENGTHS = (
    *(1, 2, 7, 8, 9),
    *(127, 128, 129),
    # Only whole tiles can have several blocks of keys.  512 is the least length that two major
    # blocks of two minor blocks each can cover.
    *(256, 384, 512),
    *(200, 255, 257),
)
"""Tiny lengths, a tile and its neighbours, several tiles, several tiles and a tail."""

HEAD_DIMS = (1, 8, 64, 80, 127, 128, 129, 256)

MOST_LOGITS = 200_000
"""Most logits of a case, batch * heads * q_len * kv_len: what the oracle's time grows with."""

MOST_PRODUCTS = 8_000_000
"""Most multiplications in q k^T: large head dimensions come with short lengths only."""

MOST_NUMBERS = 200_000
"""Most numbers in q and k together, which take time to make where one of the lengths is short."""

TINY_SCALE = 2.0**-20
VANISHING_SCALE = 2.0**-160

SEEDS = range(2**16)


@dataclass(frozen=True)
class Space:
    """What may be drawn: everything by default, less for a target that claims less.

    dtypes: of q, k and v.  causal, bias, segments, block_sizes: whether the feature may occur (with
    block_sizes False, every case has None).  backward: what explicit blocks cover, the forward
    only (False), both passes (True), or either (None).  q_lengths, kv_lengths, head_dims: the sizes
    to choose from, simplest first.  Raises ValueError for a dtype that no case can have.
    """

    dtypes: tuple[str, ...] = DTYPES
    causal: bool = True
    bias: bool = True
    segments: bool = True
    block_sizes: bool = True
    backward: bool | None = None
    q_lengths: tuple[int, ...] = Q_LENGTHS
    kv_lengths: tuple[int, ...] = KV_LENGTHS
    head_dims: tuple[int, ...] = HEAD_DIMS

    def __post_init__(self) -> None:
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise ValueError(
                f"dtypes={self.dtypes!r}: expected at least one of {', '.join(DTYPES)}, no other"
            )


DIMENSIONS = ("q_len", "kv_len", "batch", "heads", "head_dim")
"""What is chosen first, in this order; all other options follow from it."""


def draw_case(choose: Choose, space: Space) -> Case:
    """One case of `space`, every choice of it made by `choose`."""
    q_len = choose(space.q_lengths)
    kv_len = choose(space.kv_lengths)
    batch = choose(batches(q_len, kv_len))
    heads = choose(head_counts(q_len, kv_len, batch))
    head_dim = choose(head_dims(q_len, kv_len, batch, heads, space))
    dtype = choose(space.dtypes)
    causal = choose((False, True)) if space.causal else False
    sm_scale = choose(scales(head_dim))
    bias = None
    if space.bias:
        present = choose((False, True))
        # Drawn even when absent: a shrinker then removes the bias without shifting later draws.
        drawn = Bias(choose(DTYPES), choose(bias_families(sm_scale)))
        bias = drawn if present else None
    segments = None
    if space.segments and choose((False, True)):
        layout = choose(segment_layouts(q_len, kv_len, batch))
        segments = draw_segments(choose, layout, q_len, kv_len, batch)
    block_sizes = None
    if space.block_sizes:
        mode = choose(block_modes(space.backward))
        if mode is not None:
            block_sizes = draw_blocks(choose, q_len, kv_len, batch, backward=mode == "both")
    return Case(
        batch=batch,
        heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
        sm_scale=sm_scale,
        bias=bias,
        segments=segments,
        block_sizes=block_sizes,
        values=choose(tuple(values.FAMILIES)),
        seed=choose(SEEDS),
    )


def batches(q_len: int, kv_len: int) -> list[int]:
    return [batch for batch in (1, 2, 3) if batch * q_len * kv_len <= MOST_LOGITS]


def head_counts(q_len: int, kv_len: int, batch: int) -> list[int]:
    return [heads for heads in (1, 2) if batch * heads * q_len * kv_len <= MOST_LOGITS]


def head_dims(q_len: int, kv_len: int, batch: int, heads: int, space: Space) -> list[int]:
    logits = batch * heads * q_len * kv_len
    rows = batch * heads * (q_len + kv_len)
    return [
        head_dim
        for head_dim in space.head_dims
        if logits * head_dim <= MOST_PRODUCTS and rows * head_dim <= MOST_NUMBERS
    ]


def usual_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), what attention layers mostly take."""
    return 1.0 / math.sqrt(head_dim)


def scales(head_dim: int) -> list[float]:
    """1, the usual one, odd, odd above 1, negative (twice), zero, tiny, and 0 in float32."""
    usual = usual_scale(head_dim)
    listed = [1.0, usual, 0.3, 1.7, -usual, -1.3, 0.0, TINY_SCALE, VANISHING_SCALE]
    return list(dict.fromkeys(listed))


def bias_families(sm_scale: float) -> list[str]:
    """Every family but `lowest` where the scale would make its numbers the largest logits."""
    lowest_may = sm_scale >= 0.0
    return [name for name in values.BIAS_FAMILIES if name != "lowest" or lowest_may]


def block_modes(backward: bool | None) -> tuple[str | None, ...]:
    """No explicit blocks, the forward's, or those of both passes."""
    if backward is None:
        return None, "forward", "both"
    return None, "both" if backward else "forward"


def draw_blocks(choose: Choose, q_len: int, kv_len: int, batch: int, *, backward: bool) -> Blocks:
    """Blocks of the three kernels (forward, dk and dv, dq), independent of one another."""
    block_q = choose(q_blocks(q_len))
    block_k_major = choose(k_major_blocks(kv_len))
    forward = {
        "block_q": block_q,
        "block_k_major": block_k_major,
        "block_k": choose(k_minor_blocks(block_k_major)),
        "block_b": choose(range(1, batch + 1)),
    }
    if not backward:
        return Blocks(**forward)
    q_major_dkv = choose(q_blocks(q_len))
    k_major_dkv = choose(k_major_blocks(kv_len))
    k_major_dq = choose(k_major_blocks(kv_len))
    return Blocks(
        **forward,
        block_q_major_dkv=q_major_dkv,
        block_q_dkv=choose(q_minor_blocks(q_major_dkv)),
        block_k_major_dkv=k_major_dkv,
        block_k_dkv=choose(k_minor_blocks(k_major_dkv)),
        block_q_dq=choose(q_blocks(q_len)),
        block_k_major_dq=k_major_dq,
        block_k_dq=choose(k_minor_blocks(k_major_dq)),
    )


def q_blocks(q_len: int) -> list[int]:
    """Legal blocks of queries, largest first: all of them, then at most three blocks.

    Two and three blocks as even as multiples of 8 allow, the widest that leaves a tail, and 128.
    They may leave a tail that is not full, which a kernel must mask.
    """
    wanted = [-(-q_len // parts) for parts in (2, 3)] + [q_len - 1 - SUBLANES, LANES]
    rounded = {-(-block // SUBLANES) * SUBLANES for block in wanted if block > 0}
    smaller = (block for block in rounded if block < q_len <= 3 * block)
    return [q_len, *sorted(smaller, reverse=True)]


def q_minor_blocks(major: int) -> list[int]:
    """Inner blocks of queries: divisors of the major block, any number of rows being legal.

    At most four inner blocks, or eight where the major block is one sublane tile.
    """
    most = 8 if major <= SUBLANES else 4
    return [major // parts for parts in range(1, most + 1) if major % parts == 0]


def k_major_blocks(kv_len: int) -> list[int]:
    """Legal major blocks of keys, largest first: all of them, then divisors in whole tiles."""
    divisors = (kv_len // parts for parts in (2, 3) if kv_len % (parts * LANES) == 0)
    return [kv_len, *divisors]


def k_minor_blocks(major: int) -> list[int]:
    """Legal inner blocks of keys for a major block, largest first."""
    divisors = [major // parts for parts in (2, 3) if major % (parts * LANES) == 0]
    return [major, *divisors]


SEGMENT_LAYOUTS = (
    *("one", "shared", "unequal", "returning", "many", "unseen", "disjoint", "rows_differ"),
)


def segment_layouts(q_len: int, kv_len: int, batch: int) -> list[str]:
    """Layouts that these lengths can show, simplest first.

    one: a single segment.  shared: queries and keys cut at the same places.  unequal: cut at
    different ones.  returning: an id comes back after another.  many: five segments or more.
    unseen: the last queries see no key, the last keys are seen by none.  disjoint: no query sees
    any key.  rows_differ: each batch row is laid out differently.
    """
    shortest = min(q_len, kv_len)
    possible = {
        "one": True,
        "shared": shortest >= 2,
        "unequal": shortest >= 2 and max(q_len, kv_len) >= 3,
        "returning": shortest >= 3,
        "many": shortest >= 5,
        "unseen": shortest >= 2,
        "disjoint": True,
        "rows_differ": batch >= 2 and shortest >= 2,
    }
    return [layout for layout in SEGMENT_LAYOUTS if possible[layout]]


def segment_styles(layout: str, dtype: str) -> list[str]:
    """How segments are numbered: from 0 up, in no order, below zero, next to the largest."""
    styles = ["counting"]
    if layout != "one":
        styles.append("unsorted")
    if np.iinfo(dtype).min < 0:
        styles.append("negative")
    return [*styles, "huge"]


_UNSORTED = (5, 2, 9, 0, 7, 3, 8, 1)


def segment_id(number: int, style: str, dtype: str) -> int:
    """The id of the segment of that number.

    Huge ids are neighbours next to the largest integer: rounded to float32 they collide.
    """
    if style == "unsorted":
        return _UNSORTED[number]
    if style == "negative":
        return -1 - number
    return int(np.iinfo(dtype).max) - number if style == "huge" else number


def cuts(length: int) -> list[int]:
    """Where a sequence may be cut in two: its ends, its middle, and both sides of a tile's edge."""
    places = {1, length // 2, LANES - 1, LANES, LANES + 1, length - 1}
    return sorted(place for place in places if 0 < place < length)


def draw_segments(choose: Choose, layout: str, q_len: int, kv_len: int, batch: int) -> Segments:
    """Segment ids of every batch row, laid out as one of `segment_layouts`."""
    dtype = choose(SEGMENT_DTYPES)
    style = choose(segment_styles(layout, dtype))

    def runs(length: int, ends: Sequence[int], numbers: Sequence[int]) -> tuple[Run, ...]:
        starts = [0, *ends]
        lengths = [end - start for start, end in zip(starts, [*ends, length], strict=True)]
        ids = [segment_id(number, style, dtype) for number in numbers]
        return tuple(zip(ids, lengths, strict=True))

    def even(length: int, parts: int) -> list[int]:
        return [length * part // parts for part in range(1, parts)]

    def row(layout: str) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        if layout == "one":
            return runs(q_len, [], [0]), runs(kv_len, [], [0])
        if layout == "disjoint":
            return runs(q_len, [], [0]), runs(kv_len, [], [1])
        if layout == "many":
            parts = choose([parts for parts in (5, 8) if parts <= min(q_len, kv_len)])
            numbers = range(parts)
            return runs(q_len, even(q_len, parts), numbers), runs(
                kv_len, even(kv_len, parts), numbers
            )
        if layout == "returning":
            return runs(q_len, even(q_len, 3), [0, 1, 0]), runs(kv_len, even(kv_len, 3), [0, 1, 0])
        if layout == "shared":
            cut = choose(cuts(min(q_len, kv_len)))
            return runs(q_len, [cut], [0, 1]), runs(kv_len, [cut], [0, 1])
        # Where one side has a single place for its cut, the other must cut elsewhere.
        taken = cuts(kv_len) if layout == "unequal" and kv_len == 2 else []
        q_cut = choose([cut for cut in cuts(q_len) if cut not in taken])
        taken = [q_cut] if layout == "unequal" else []
        kv_cut = choose([cut for cut in cuts(kv_len) if cut not in taken])
        kv_last = 2 if layout == "unseen" else 1
        return runs(q_len, [q_cut], [0, 1]), runs(kv_len, [kv_cut], [0, kv_last])

    if layout == "rows_differ":
        # The first row is one segment, so that any other row differs from it.
        rows = [row("one")]
        for _ in range(batch - 1):
            rows.append(row(choose(("shared", "unseen"))))
    else:
        rows = [row(layout)] * batch
    q_rows, kv_rows = zip(*rows, strict=True)
    return Segments(dtype, q_rows, kv_rows)
