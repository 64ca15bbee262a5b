"""Rows of one number a query, in blocks and back."""

import jax.numpy as jnp
import numpy as np
import pytest

from kernel.rows import in_blocks, out_of_blocks


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("q_len", "block_q"), [(1, 1), (5, 5), (24, 8), (25, 8), (100, 64)])
def test_blocks_hold_their_queries_and_zeros_beyond(leading, count, q_len, block_q):
    rows = np.arange(1, np.prod((*leading, count, q_len)) + 1, dtype=np.float32)
    rows = rows.reshape(*leading, count, q_len)
    blocks = np.asarray(in_blocks(jnp.asarray(rows), block_q))
    number = -(-q_len // block_q)
    assert blocks.shape == (*leading, number, count, block_q)
    for i in range(number):
        part = rows[..., i * block_q : (i + 1) * block_q]
        np.testing.assert_array_equal(blocks[..., i, :, : part.shape[-1]], part)
        assert not blocks[..., i, :, part.shape[-1] :].any()
    np.testing.assert_array_equal(out_of_blocks(jnp.asarray(blocks), q_len), rows)
