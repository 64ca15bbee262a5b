"""What a grid step does: where its block lies to the causal diagonal, and which parts that leaves.

A step has a block of queries and a block of keys. Under causal order the block is wholly hidden, or
wholly visible, or the diagonal crosses it. Where the diagonal crosses at a place that is known when
the kernel is traced, only the parts that some query sees are computed, and only those that the
diagonal crosses are masked. So a kernel is traced once for every place that occurs, as long as
these are few.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from kernel.blocks import LANES, round_up

# Above this many places of the diagonal, one body takes its place as a number.
_MOST_PLACES = 2


class Part(NamedTuple):
    """A part of a block that is computed at once: a tile of the logits.

    Attributes:
      queries, keys: slices of the block.
      diagonal: key k of the tile is seen by query q of it if k <= q + diagonal; None if every query
        sees every key.
    """

    queries: slice
    keys: slice
    diagonal: Any


class Grid(NamedTuple):
    """The blocks of a kernel, and the tiles that they are cut into.

    Attributes:
      block_q, block_k: queries and keys of a step; multiples of 8, but for a block_q that is alone.
      tile_q, tile_k: queries and keys of a tile; the last queries of a block may be fewer.
      query_blocks, key_blocks: how many blocks there are.
      causal: whether a query sees no later key.
    """

    block_q: int
    block_k: int
    tile_q: int
    tile_k: int
    query_blocks: int
    key_blocks: int
    causal: bool

    def last_key_block(self, query_block):
        """The last block of keys that a block of queries sees any of; it may not exist."""
        return lax.div((query_block + 1) * self.block_q - 1, np.int32(self.block_k))

    def first_query_block(self, key_block):
        """The first block of queries that sees any of a block of keys; it may not exist."""
        return lax.div(key_block * self.block_k, np.int32(self.block_q))

    def visit(self, query_block, key_block, compute: Callable[[list[Part]], None]) -> None:
        """Calls `compute` with the parts of a step that have to be computed.

        Within the kernel it runs where the step has any.
        """
        if not self.causal:
            compute(self._parts(None))
            return
        if self.query_blocks == self.key_blocks == 1:
            compute(self._parts(0))
            return
        # Key k of the block is seen by query q of it if k <= q + diagonal.
        diagonal = query_block * self.block_q - key_block * self.block_k
        places = self._crossings()
        if (self.query_blocks - 1) * self.block_q >= self.block_k - 1:
            pl.when(diagonal >= self.block_k - 1)(functools.partial(compute, self._parts(None)))
        if len(places) <= _MOST_PLACES:
            for place in places:
                pl.when(diagonal == place)(functools.partial(compute, self._parts(place)))
        else:
            crossed = (diagonal > -self.block_q) & (diagonal < self.block_k - 1)
            pl.when(crossed)(functools.partial(compute, self._parts(diagonal)))

    def _crossings(self) -> list[int]:
        """The places at which the diagonal crosses a block."""
        places = set()
        for i in range(self.query_blocks):
            first = i * self.block_q // self.block_k
            last = ((i + 1) * self.block_q - 1) // self.block_k
            for j in range(first, min(last, self.key_blocks - 1) + 1):
                # Below block_k, and so, where it is a multiple of 8, below block_k - 1.
                places.add(i * self.block_q - j * self.block_k)
            if len(places) > _MOST_PLACES:
                break
        return sorted(places)

    def _parts(self, diagonal) -> list[Part]:
        """The tiles of a block, but for those that nobody sees. For each of the keys all queries,
        because tiles of different queries do not wait for one another."""
        parts = []
        for key in range(0, self.block_k, self.tile_k):
            for query in range(0, self.block_q, self.tile_q):
                queries = min(self.tile_q, self.block_q - query)
                keys = self.tile_k
                place = None if diagonal is None else diagonal + query - key
                if isinstance(place, int):
                    seen = place + queries  # by the last query, of the keys from the tile's first
                    if seen <= 0:
                        continue
                    keys = min(keys, round_up(seen, LANES))
                    if place >= keys - 1:
                        place = None
                parts.append(Part(slice(query, query + queries), slice(key, key + keys), place))
        return parts


def pipelined(
    parts: Iterable[Part],
    start: Callable[[Part], Any],
    finish: Callable[[Part, Any], None],
    ahead: int,
) -> None:
    """Starts and finishes every part, each `ahead` parts after it was started.

    A tile is a chain of steps that wait for one another: a product, a maximum, exponentials,
    another product. The compiler fills the waits with other work only if that stands nearby.
    """
    waiting: collections.deque[tuple[Part, Any]] = collections.deque()
    for part in parts:
        waiting.append((part, start(part)))
        if len(waiting) > ahead:
            finish(*waiting.popleft())
    while waiting:
        finish(*waiting.popleft())
