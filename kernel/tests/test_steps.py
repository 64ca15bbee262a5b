"""What a grid step computes: every visible position once, and what is hidden beside it masked."""

import itertools

import numpy as np
import pytest

from kernel import steps
from kernel.steps import Grid, Part, pipelined

# Query blocks, key blocks, and the tiles of each: square, wide, tall, of no common divisor; the
# last queries of a block fewer than a tile.
_SHAPES = (
    *((8, 128, 8, 128), (24, 256, 8, 128), (128, 128, 64, 128), (128, 384, 64, 384)),
    *((200, 128, 64, 128), (256, 128, 64, 128), (256, 256, 128, 128), (200, 384, 200, 128)),
    *((1, 128, 1, 128), (100, 256, 100, 256)),
)
_COUNTS = ((1, 1), (1, 3), (2, 2), (3, 1), (3, 2), (5, 3))


@pytest.fixture(autouse=True)
def _branches_are_taken(monkeypatch):
    """`pl.when` as it is at run time: it runs one of the branches, and does not trace them all."""
    monkeypatch.setattr(
        steps.pl, "when", lambda condition: lambda run: run() if condition else None
    )


def _grid(shape: tuple[int, int, int, int], counts: tuple[int, int], causal: bool) -> Grid:
    return Grid(*shape, *counts, causal)


def _steps(grid: Grid):
    # As in a kernel the number of a block is no Python integer: that is for what is known earlier.
    return itertools.product(
        map(np.int32, range(grid.query_blocks)), map(np.int32, range(grid.key_blocks))
    )


def _parts(grid: Grid, query_block, key_block) -> list[Part]:
    computed: list[list[Part]] = []
    grid.visit(query_block, key_block, computed.append)
    assert len(computed) <= 1
    return computed[0] if computed else []


@pytest.mark.parametrize("counts", _COUNTS)
@pytest.mark.parametrize("causal", [False, True])
def test_visible_positions_are_computed_once_and_hidden_ones_masked(counts, causal):
    for block_q, block_k, tile_q, tile_k in _SHAPES:
        grid = _grid((block_q, block_k, tile_q, tile_k), counts, causal)
        queries, keys = (np.arange(n) for n in (block_q * counts[0], block_k * counts[1]))
        visible = keys <= queries[:, None] if causal else np.ones((queries.size, keys.size), bool)
        used = np.zeros(visible.shape, int)
        for i, j in _steps(grid):
            block = np.s_[i * block_q : (i + 1) * block_q], np.s_[j * block_k : (j + 1) * block_k]
            for part in _parts(grid, i, j):
                seen = visible[block][part.queries, part.keys]
                mask = np.ones(seen.shape, bool)
                if part.diagonal is not None:
                    query, key = (np.arange(n) for n in seen.shape)
                    mask = key <= query[:, None] + part.diagonal
                np.testing.assert_array_equal(mask, seen)
                used[block][part.queries, part.keys] += mask
        np.testing.assert_array_equal(used, visible)


@pytest.mark.parametrize("counts", _COUNTS)
def test_steps_with_work_lie_between_the_first_and_the_last(counts):
    for block_q, block_k, tile_q, tile_k in _SHAPES:
        grid = _grid((block_q, block_k, tile_q, tile_k), counts, True)
        for i, j in _steps(grid):
            has_work = bool(_parts(grid, i, j))
            assert has_work == (j <= grid.last_key_block(i)) == (i >= grid.first_query_block(j))


def test_whole_blocks_of_causal_order_are_neither_masked_nor_cut_by_it():
    grid = Grid(256, 256, 128, 128, 2, 2, True)
    below = _parts(grid, np.int32(1), np.int32(0))
    assert len(below) == 4
    assert all(part.diagonal is None for part in below)
    on = _parts(grid, np.int32(0), np.int32(0))
    assert [part.diagonal for part in on] == [0, None, 0]


@pytest.mark.parametrize("ahead", [0, 1, 3, 9])
def test_parts_start_ahead_and_finish_in_order(ahead):
    parts = [Part(slice(n, n + 1), slice(0, 1), None) for n in range(6)]
    events = []

    def start(part):
        events.append(("start", part.queries.start))
        return part.queries.start

    pipelined(parts, start, lambda part, n: events.append(("finish", n)), ahead)
    for what in ("start", "finish"):
        assert [n for event, n in events if event == what] == list(range(6))
    for n in range(6):
        started = {m for event, m in events[: events.index(("finish", n))] if event == "start"}
        assert started == set(range(min(n + ahead + 1, 6)))
