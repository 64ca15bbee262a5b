"""The forward kernel: one pass over the keys, with a running maximum and a running sum.

A row's weights are exp(s - m), m the largest logit seen so far. When a block of keys brings a
larger one, what was gathered before is scaled by exp(m_before - m). Dividing by the sum of weights
waits until the last block.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernel import tile
from kernel.tile import ALL, HIDDEN, ZERO, Call, Inputs, matmul


def forward(call: Call, inputs: Inputs, *, save_residuals: bool) -> tuple[jax.Array, ...]:
    """Attention, and on request what the backward kernels need of it.

    Returns:
      (o,) or (o, l, m): o like q; l the sum of weights and m the largest logit of each row,
      [batch, heads, q_len, 1] float32. A row that sees no key has o = 0, l = 0 and m = -inf.
    """
    batch, heads, q_len, head_dim = inputs.q.shape
    blocks = call.blocks
    block_b, block_q, block_k = blocks.block_b, blocks.block_q, blocks.block_k_major
    grid = (
        pl.cdiv(batch, block_b),
        heads,
        pl.cdiv(q_len, block_q),
        call.padded_kv_len // block_k,
    )

    def key_block(query_index, key_index):
        if call.causal:
            # A step without work asks for the block that is there already: nothing is copied.
            return lax.min(key_index, tile.last_key_block(query_index, block_q, block_k))
        return key_index

    query_spec = pl.BlockSpec(
        (block_b, None, block_q, head_dim), lambda b, h, i, j: (b, h, i, ZERO)
    )
    column_spec = pl.BlockSpec((block_b, None, block_q, 1), lambda b, h, i, j: (b, h, i, ZERO))
    key_spec = pl.BlockSpec(
        (block_b, None, block_k, head_dim), lambda b, h, i, j: (b, h, key_block(i, j), ZERO)
    )
    specs = Inputs(
        q=query_spec,
        k=key_spec,
        v=key_spec,
        ab=pl.BlockSpec(
            (block_b, None, block_q, block_k), lambda b, h, i, j: (b, h, i, key_block(i, j))
        ),
        q_ids=pl.BlockSpec((block_b, block_q, 1), lambda b, h, i, j: (b, i, ZERO)),
        kv_ids=pl.BlockSpec((block_b, 1, block_k), lambda b, h, i, j: (b, ZERO, key_block(i, j))),
    )

    single_step = blocks.block_k == call.padded_kv_len
    column = (block_b, block_q, 1)
    scratch = [column, column, (block_b, block_q, head_dim)]
    residual = tile.result(inputs, (batch, heads, q_len, 1), jnp.float32)
    residuals = 2 if save_residuals else 0
    outputs, saved = pl.pallas_call(
        functools.partial(_single_step if single_step else _multi_step, call),
        grid=grid,
        in_specs=[inputs.only_present(specs)],
        out_specs=((query_spec,), (column_spec,) * residuals),
        out_shape=(
            (tile.result(inputs, inputs.q.shape, inputs.q.dtype),),
            (residual,) * residuals,
        ),
        scratch_shapes=[] if single_step else [pltpu.VMEM(s, jnp.float32) for s in scratch],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY)
        ),
        name=(
            f"flash_attention_forward_block_b_{block_b}_block_q_{block_q}"
            f"_block_k_major_{block_k}_block_k_{blocks.block_k}"
        ),
        debug=call.debug,
    )(inputs)
    return (*outputs, *saved)


def _single_step(call, refs, outs, residuals):
    """All keys in one tile: no running statistics."""
    block_b, block_q, _ = refs.q.shape
    first_query = pl.program_id(2) * block_q
    for b in range(block_b):
        row = _batch_row(refs, b)
        s = tile.logits(call, row, ALL, ALL, first_query=first_query, first_key=0)
        m = tile.row_max(s)
        p = lax.exp(s - _finite(m))
        l = tile.row_sum(p)
        acc = matmul(p.astype(row.v.dtype), row.v[...], (1, 0))
        _store(b, outs, residuals, m, l, acc)


def _multi_step(call, refs, outs, residuals, m_ref, l_ref, acc_ref):
    """One major block of keys a grid step; the statistics wait in scratch memory in between."""
    query_index, key_index = pl.program_id(2), pl.program_id(3)
    block_b, block_q, _ = refs.q.shape
    block_k_major, block_k = refs.k.shape[1], call.blocks.block_k
    first_query, first_key = query_index * block_q, key_index * block_k_major

    @pl.when(key_index == 0)
    def start_rows():
        m_ref[...] = jnp.full(m_ref.shape, HIDDEN, jnp.float32)
        l_ref[...] = jnp.zeros(l_ref.shape, jnp.float32)
        acc_ref[...] = jnp.zeros(acc_ref.shape, jnp.float32)

    def visit(b, start):
        row, keys = _batch_row(refs, b), pl.ds(start, block_k)
        s = tile.logits(call, row, ALL, keys, first_query=first_query, first_key=first_key + start)
        m_before = m_ref[b]
        m = lax.max(m_before, tile.row_max(s))
        p = lax.exp(s - _finite(m))
        rescale = lax.exp(m_before - _finite(m))
        m_ref[b] = m
        l_ref[b] = rescale * l_ref[b] + tile.row_sum(p)
        acc_ref[b] = rescale * acc_ref[b] + matmul(p.astype(row.v.dtype), row.v[keys, :], (1, 0))

    def visit_keys():
        for b in range(block_b):
            for start in range(0, block_k_major, block_k):
                visit(b, start)

    if call.causal:
        last = tile.last_key_block(query_index, block_q, block_k_major)
        pl.when(key_index <= last)(visit_keys)
    else:
        visit_keys()

    @pl.when(key_index == pl.num_programs(3) - 1)
    def finish_rows():
        for b in range(block_b):
            _store(b, outs, residuals, m_ref[b], l_ref[b], acc_ref[b])


def _batch_row(refs: Inputs, b: int) -> Inputs:
    return Inputs(*(None if ref is None else ref.at[b] for ref in refs))


def _finite(m):
    """A row's maximum as something to subtract: a row that saw no key yet has the maximum -inf."""
    return tile.select(m == HIDDEN, 0.0, m)


def _store(b, outs, residuals, m, l, acc):
    """Divides by the sum of weights; a row without a visible key gets exact zeros."""
    (o_ref,) = outs
    o_ref[b] = tile.select(l == 0.0, 0.0, acc / tile.select(l == 0.0, 1.0, l)).astype(o_ref.dtype)
    if residuals:
        l_ref, m_ref = residuals
        l_ref[b] = l
        m_ref[b] = m
