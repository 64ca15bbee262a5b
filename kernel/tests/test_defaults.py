"""The blocks of a call that names none: legal, evenly long, and no larger than memory allows."""

import itertools

import pytest

from kernel.blocks import LANES, round_up
from kernel.defaults import LEAST_VMEM, TILE, choose_blocks

# Everything below a tile's size, both sides of what is cut into one block more, and beyond.
LENGTHS = (
    *range(1, 18),
    *(length + d for length in (128, 256, 512, 1024, 2048, 4096) for d in (-1, 0, 1)),
    *(200, 600, 1300, 2500, 3000, 6000, 8192, 100_000),
)
HEAD_DIMS = (1, 64, 128, 200, 256, 512, 1000, 1024)
# What is granted where nothing is known, and three quarters of what TPUs have.
MEMORIES = (None, 48 * 2**20, 96 * 2**20)
SETTINGS = list(itertools.product(HEAD_DIMS, (2, 4), (False, True), MEMORIES))


@pytest.mark.parametrize(("head_dim", "itemsize", "bias", "vmem_bytes"), SETTINGS)
def test_chosen_blocks_are_legal_and_evenly_long(head_dim, itemsize, bias, vmem_bytes):
    for q_len, kv_len in itertools.product(LENGTHS, LENGTHS):
        blocks = choose_blocks(q_len, kv_len, head_dim, itemsize, bias=bias, vmem_bytes=vmem_bytes)
        padded = round_up(kv_len, blocks.block_k_major)
        blocks.check_shape(1, q_len, padded)
        assert blocks.has_backward_blocks
        assert blocks.block_q_major_dkv is not None
        assert blocks.block_k_major_dkv is not None
        assert padded == round_up(kv_len, blocks.block_k_major_dkv)
        for block, length in (
            (blocks.block_q, q_len),
            (blocks.block_q_major_dkv, q_len),
            (blocks.block_k_major, kv_len),
        ):
            number = -(-length // block)
            # What the last block has less than the others is due to whole tiles alone.
            assert block - length / number < TILE
            assert block <= 2048
            assert block == length or block % LANES == 0


@pytest.mark.parametrize("backward", [False, True])
def test_more_memory_and_less_to_hold_never_make_blocks_shorter(backward):
    def longest(head_dim, itemsize, bias, vmem_bytes):
        blocks = choose_blocks(8192, 8192, head_dim, itemsize, bias=bias, vmem_bytes=vmem_bytes)
        return blocks.block_q_major_dkv if backward else blocks.block_q

    for bias, memory in itertools.product((False, True), MEMORIES):
        sizes = [longest(d, size, bias, memory) for d in HEAD_DIMS for size in (2, 4)]
        assert all(longest(d, 2, bias, memory) >= longest(d, 4, bias, memory) for d in HEAD_DIMS)
        assert sizes[::2] == sorted(sizes[::2], reverse=True)
    for d, size in itertools.product(HEAD_DIMS, (2, 4)):
        assert longest(d, size, True, None) <= longest(d, size, False, None)
        assert longest(d, size, False, LEAST_VMEM) <= longest(d, size, False, MEMORIES[-1])
