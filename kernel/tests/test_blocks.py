"""Block sizes: construction, and that defaults are legal for every shape."""

import itertools

import pytest

from kernel import BlockSizes
from kernel.defaults import choose_blocks

LENGTHS = (1, 7, 100, 127, 128, 129, 384, 640, 1024, 8192, 8193)


@pytest.mark.parametrize(("q_len", "kv_len"), list(itertools.product(LENGTHS, LENGTHS)))
@pytest.mark.parametrize("head_dim", [1, 128, 1024])
def test_default_blocks_fit_their_shape(q_len, kv_len, head_dim):
    blocks = BlockSizes.get_default(2, 3, q_len, kv_len, head_dim)
    blocks.check_shape(2, q_len, kv_len)
    assert blocks.has_backward_blocks


@pytest.mark.parametrize("kv_len", LENGTHS)
def test_chosen_blocks_are_whole_lanes_and_waste_less_than_a_block(kv_len):
    blocks = choose_blocks(64, kv_len, 128, 2, bias=False, vmem_bytes=None)
    assert blocks.block_k % 128 == 0
    assert blocks.block_k < kv_len + 128


def test_larger_heads_get_smaller_blocks():
    sizes = [
        choose_blocks(8192, 8192, head_dim, 4, bias=False, vmem_bytes=None).block_k
        for head_dim in (64, 256, 1024)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] >= 128


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"block_k": 256}, ValueError, ("block_k=256", "must not exceed", "block_k_major=128")),
        ({"block_k": 96}, ValueError, ("block_k=96", "must divide", "block_k_major=128")),
        ({"block_q": 0}, ValueError, ("block_q=0", "positive")),
        ({"block_b": True}, TypeError, ("block_b=True", "integer")),
        ({"block_q": None}, TypeError, ("block_q=None", "integer")),
        ({"block_q_dq": 8}, ValueError, ("all or none", "block_k_dkv", "block_k_dq")),
    ],
)
def test_construction_refuses(fields, error, words):
    legal = {"block_q": 128, "block_k_major": 128, "block_k": 128, "block_b": 1}
    with pytest.raises(error) as refusal:
        BlockSizes(**(legal | fields))
    assert all(word in str(refusal.value) for word in words)
