"""One number a query, in blocks: how maxima, sums and segment ids are laid out in memory.

An array [..., q_len, 1] would take a whole lane row, 512 bytes, for every number. As [..., q_len]
it is dense, but then a block of it would have to be a multiple of 128 numbers. In blocks
[..., blocks, rows, block_q], each of which a kernel takes whole, every block_q is allowed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def in_blocks(rows: jax.Array, block_q: int) -> jax.Array:
    """[..., rows, q_len] as [..., blocks, rows, block_q], with zeros where the last is not full."""
    *leading, count, q_len = rows.shape
    blocks = pl.cdiv(q_len, block_q)
    missing = blocks * block_q - q_len
    if missing:
        rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return rows.reshape(*leading, count, blocks, block_q).swapaxes(-2, -3)


def out_of_blocks(blocks: jax.Array, q_len: int) -> jax.Array:
    """The inverse: [..., blocks, rows, block_q] as [..., rows, q_len]."""
    *leading, number, count, block_q = blocks.shape
    rows = blocks.swapaxes(-2, -3).reshape(*leading, count, number * block_q)
    return rows[..., :q_len]
