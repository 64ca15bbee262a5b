"""The forward kernel: one pass over the keys, with a running maximum and a running sum.

A row's weights are p = exp(s - m), m the largest logit seen so far, computed as 2 to the power of
(s - m) · rate. When a tile of keys brings a larger maximum, what was gathered before is scaled by
exp(m_before - m). Dividing by the sum of weights l waits until the last tile:

    m = max(m_before, max s)     l = l · exp(m_before - m) + sum p
    oᵀ = (acc · exp(m_before - m) + vᵀ p) / l
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernel import rows, tile
from kernel.steps import Grid, pipelined
from kernel.tile import ZERO, Call, Inputs, over_keys

# Where the maximum starts: -inf would make nan of -inf - -inf in a row that has seen no key.
_LOWEST = np.finfo(np.float32).min
# How many tiles of logits are computed before the first of them is finished.
_AHEAD = 12


class Running(NamedTuple):
    """What is known of some queries after some keys.

    Attributes:
      m, l: [1, queries], the largest logit and the sum of weights.
      acc: [head_dim, queries], the weighted sum of values.
    """

    m: Any
    l: Any
    acc: Any


def forward(call: Call, inputs: Inputs, *, save_residuals: bool) -> tuple[jax.Array, ...]:
    """Attention, and on request what the backward kernel needs of it.

    Returns:
      (o,) or (o, statistics): o like q; statistics [batch, heads, 2, q_len] float32, of each row
      the largest logit m and the sum l of its weights. m is not scaled where
      `call.scales_exponent`. A row that sees no key has o = 0, l = 0 and the lowest float for m.
    """
    batch, heads, q_len, head_dim = inputs.q.shape
    blocks = call.blocks
    block_b, block_q, block_k = blocks.block_b, blocks.block_q, blocks.block_k_major
    grid = Grid(
        block_q=block_q,
        block_k=block_k,
        tile_q=call.query_tiles[0],
        tile_k=blocks.block_k,
        query_blocks=pl.cdiv(q_len, block_q),
        key_blocks=call.padded_kv_len // block_k,
        causal=call.causal,
    )

    def key_block(i, j):
        # Steps without work come last; they ask for the block with which the next queries begin.
        return lax.select(j <= grid.last_key_block(i), j, lax.full_like(j, 0)) if call.causal else j

    def bias_block(i, j):
        if call.causal:
            following = lax.min(i + 1, np.int32(grid.query_blocks - 1))
            return lax.select(j <= grid.last_key_block(i), i, following), key_block(i, j)
        return i, j

    query_spec = pl.BlockSpec(
        (block_b, None, block_q, head_dim), lambda b, h, i, j: (b, h, i, ZERO)
    )
    key_spec = pl.BlockSpec(
        (block_b, None, block_k, head_dim), lambda b, h, i, j: (b, h, key_block(i, j), ZERO)
    )
    specs = Inputs(
        q=query_spec,
        k=key_spec,
        v=key_spec,
        ab=pl.BlockSpec(
            (block_b, None, block_q, block_k), lambda b, h, i, j: (b, h, *bias_block(i, j))
        ),
        q_ids=pl.BlockSpec((block_b, None, 1, block_q), lambda b, h, i, j: (b, i, ZERO, ZERO)),
        kv_ids=pl.BlockSpec((block_b, block_k, 1), lambda b, h, i, j: (b, key_block(i, j), ZERO)),
    )
    statistics_spec = pl.BlockSpec(
        (block_b, None, None, 2, block_q), lambda b, h, i, j: (b, h, i, ZERO, ZERO)
    )
    statistics = tile.result(inputs, (batch, heads, grid.query_blocks, 2, block_q), jnp.float32)
    scratch = Running((block_b, 1, block_q), (block_b, 1, block_q), (block_b, head_dim, block_q))
    if inputs.q_ids is not None:
        inputs = inputs._replace(q_ids=rows.in_blocks(inputs.q_ids, block_q))
    (o,), saved = pl.pallas_call(
        functools.partial(_kernel, call, grid),
        grid=(pl.cdiv(batch, block_b), heads, grid.query_blocks, grid.key_blocks),
        in_specs=[inputs.only_present(specs)],
        out_specs=((query_spec,), (statistics_spec,) * save_residuals),
        out_shape=(
            (tile.result(inputs, inputs.q.shape, inputs.q.dtype),),
            (statistics,) * save_residuals,
        ),
        scratch_shapes=[pltpu.VMEM(s, jnp.float32) for s in scratch if grid.key_blocks > 1],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY),
            vmem_limit_bytes=call.vmem_bytes,
        ),
        name=(
            f"flash_attention_forward_block_b_{block_b}_block_q_{block_q}"
            f"_block_k_major_{block_k}_block_k_{blocks.block_k}"
        ),
        debug=call.debug,
    )(inputs)
    return (o, *(rows.out_of_blocks(s, q_len) for s in saved))


def _kernel(call, grid, refs, outs, residuals, *scratch):
    i, j = pl.program_id(2), pl.program_id(3)
    block_b = refs.q.shape[0]

    def compute(parts):
        for b in range(block_b):
            kept = Running(*(ref.at[b] for ref in scratch)) if scratch else None
            row = Inputs(*(None if ref is None else ref.at[b] for ref in refs))
            for queries, running in _attend(call, grid, row, kept, parts, j):
                if kept is None:
                    _store(b, queries, outs, residuals, running)
                else:
                    for ref, value in zip(kept, running, strict=True):
                        ref[:, queries] = value

    if scratch:

        @pl.when(j == 0)
        def start_rows():
            for ref, value in zip(scratch, Running(_LOWEST, 0.0, 0.0), strict=True):
                ref[...] = lax.full(ref.shape, value, jnp.float32)

    grid.visit(i, j, compute)
    if scratch:

        @pl.when(j == grid.key_blocks - 1)
        def finish_rows():
            for b in range(block_b):
                _store(b, slice(None), outs, residuals, Running(*(ref[b] for ref in scratch)))


def _attend(call, grid, row, kept, parts, key_block):
    """What is known of the queries of some parts after the keys of these, by slices of queries."""
    known: dict[int, tuple[slice, Running]] = {}

    def start(part):
        return tile.logits(call, grid, row, row.q[part.queries, :], part, key_block)

    def finish(part, s):
        queries = part.queries
        before = None
        if queries.start in known:
            _, before = known[queries.start]
        elif kept is not None:
            before = Running(*(ref[:, queries] for ref in kept))
        known[queries.start] = queries, _seen(call, row, before, s, row.v[part.keys, :])

    pipelined(parts, start, finish, _AHEAD)
    return known.values()


def _seen(call: Call, row: Inputs, before: Running | None, s, v) -> Running:
    """`before`, None for nothing, and the keys of a tile."""
    rate = call.base_2_rate
    m = lax.max(over_keys(lax.reduce_max, s), _LOWEST if before is None else before.m)
    p = lax.exp2((s - m) * rate)
    l = over_keys(lax.reduce_sum, p)
    acc = tile.over_all_keys(row, v, p.astype(v.dtype))
    if before is None:
        return Running(m, l, acc)
    fading = lax.exp2((before.m - m) * rate)
    return Running(m, before.l * fading + l, before.acc * fading + acc)


def _store(b, queries, outs, residuals, running: Running):
    """Divides by the sum of weights; a row without a visible key gets exact zeros."""
    (o_ref,) = outs
    m, l, acc = running
    share = 1.0 / tile.select(l == 0.0, 1.0, l)
    o_ref[b, queries, :] = tile.transposed(acc * share).astype(o_ref.dtype)
    for ref in residuals:
        ref[b, 0:1, queries] = m
        ref[b, 1:2, queries] = l
