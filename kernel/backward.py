"""The backward kernel: the gradients of q, k, v and the bias in one pass over the tiles.

It recomputes a tile's weights from the saved maximum m and sum l, p = exp(s - m) / l, and from
them, with dp = v doᵀ and di = sum(o · do) of each query,

    ds = (dp - di) · p      dv = p do      dk = ds q      dqᵀ = kᵀ ds      dab = dsᵀ · sm_scale

where dk and dq are multiplied by sm_scale at the end. All is in the transposed tiles of `tile.py`.
Steps run over queries for a block of keys, so that dk and dv are gathered in one place. dq is
gathered in on-chip memory for all queries at once, until the last block of keys. Where these are
too many, they are taken in several chunks, whose shares of dk and dv are added up outside.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernel import rows, tile
from kernel.blocks import LANES, SUBLANES, round_up
from kernel.defaults import LEAST_VMEM
from kernel.steps import Grid, pipelined
from kernel.tile import HIDDEN, ZERO, Call, Inputs, matmul

# How many tiles of logits are computed before the first of them is finished.
_AHEAD = 1


class Saved(NamedTuple):
    """What the backward kernel takes beside the inputs; within it, references to blocks.

    Attributes:
      statistics: [batch, heads, 2, q_len] float32, as `forward.forward` returns them.
      o: output, like q.
      do: cotangent of the output, like q.
    """

    statistics: Any
    o: Any
    do: Any


def backward(call: Call, inputs: Inputs, saved: Saved) -> Inputs:
    """Gradients of q, k, v and, where there is one, of the bias: each like its primal.

    The blocks of the call have all backward fields. Those of dk and dv are the kernel's; those of
    dq say nothing to it.
    """
    batch, heads, q_len, head_dim = inputs.q.shape
    blocks = call.blocks
    block_q, block_k = blocks.block_q_major_dkv, blocks.block_k_major_dkv
    grid = Grid(
        block_q=block_q,
        block_k=block_k,
        tile_q=call.query_tiles[1],
        tile_k=blocks.block_k_dkv,
        query_blocks=pl.cdiv(q_len, block_q),
        key_blocks=call.padded_kv_len // block_k,
        causal=call.causal,
    )
    chunks = _chunks(call, grid, head_dim)
    per_chunk = pl.cdiv(grid.query_blocks, chunks)

    def last_of_chunk(c):
        return lax.min((c + 1) * per_chunk, np.int32(grid.query_blocks)) - 1

    def query_block(c, j, i):
        """The block of queries of a step; for one without work, the next that has some."""
        i += c * per_chunk
        if call.causal:
            i = lax.max(i, grid.first_query_block(j))
        return lax.min(i, last_of_chunk(c))

    def o_block(c, j, i):
        # o is looked at once, for di.
        return query_block(c, j, lax.select(j == 0, i, lax.full_like(i, per_chunk)))

    def dq_block(c, j, i):
        # Complete at the last keys; until then none may be written.
        last = j == grid.key_blocks - 1
        return lax.min(c * per_chunk + lax.select(last, i, lax.full_like(i, 0)), last_of_chunk(c))

    def spec(shape, place):
        """Blocks of `shape` at place(b, h, c, j, i), c the chunk."""
        if chunks == 1:
            return pl.BlockSpec(shape, lambda b, h, j, i: place(b, h, ZERO, j, i))
        keys = np.int32(grid.key_blocks)
        return pl.BlockSpec(
            shape, lambda b, h, n, i: place(b, h, lax.div(n, keys), lax.rem(n, keys), i)
        )

    query_shape = (None, None, block_q, head_dim)
    bias_shape = (None, None, block_q, block_k)
    query_spec = spec(query_shape, lambda b, h, c, j, i: (b, h, query_block(c, j, i), ZERO))
    key_spec = spec((None, None, block_k, head_dim), lambda b, h, c, j, i: (b, h, j, ZERO))
    share_spec = spec(
        (None, None, None, block_k, head_dim), lambda b, h, c, j, i: (c, b, h, j, ZERO)
    )
    specs = Inputs(
        q=query_spec,
        k=key_spec,
        v=key_spec,
        ab=spec(bias_shape, lambda b, h, c, j, i: (b, h, query_block(c, j, i), j)),
        q_ids=spec(
            (None, None, 1, block_q), lambda b, h, c, j, i: (b, query_block(c, j, i), ZERO, ZERO)
        ),
        kv_ids=spec((None, block_k, 1), lambda b, h, c, j, i: (b, j, ZERO)),
    )
    saved_specs = Saved(
        statistics=spec(
            (None, None, None, 2, block_q),
            lambda b, h, c, j, i: (b, h, query_block(c, j, i), ZERO, ZERO),
        ),
        o=spec(query_shape, lambda b, h, c, j, i: (b, h, o_block(c, j, i), ZERO)),
        do=query_spec,
    )
    share = (chunks, *inputs.k.shape)
    dtype = inputs.k.dtype if chunks == 1 else jnp.float32
    out_specs = [spec(query_shape, lambda b, h, c, j, i: (b, h, dq_block(c, j, i), ZERO))]
    out_specs += [share_spec, share_spec]
    out_shape = [tile.result(inputs, inputs.q.shape, inputs.q.dtype)]
    out_shape += [tile.result(inputs, share, dtype)] * 2
    if inputs.ab is not None:
        # A tile for every step, those without work too: they write zeros.
        out_specs.append(
            spec(
                bias_shape,
                lambda b, h, c, j, i: (b, h, lax.min(c * per_chunk + i, last_of_chunk(c)), j),
            )
        )
        out_shape.append(tile.result(inputs, inputs.ab.shape, inputs.ab.dtype))
    if inputs.q_ids is not None:
        inputs = inputs._replace(q_ids=rows.in_blocks(inputs.q_ids, block_q))
    dq, dk, dv, *dab = pl.pallas_call(
        functools.partial(_kernel, call, grid, per_chunk),
        grid=(batch, heads, chunks * grid.key_blocks, per_chunk),
        in_specs=[inputs.only_present(specs), saved_specs],
        out_specs=out_specs,
        out_shape=out_shape,
        scratch_shapes=[
            pltpu.VMEM((per_chunk, head_dim, block_q), jnp.float32),
            pltpu.VMEM((block_k, head_dim), jnp.float32),
            pltpu.VMEM((block_k, head_dim), jnp.float32),
            pltpu.VMEM((per_chunk, 1, block_q), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY, pltpu.ARBITRARY),
            vmem_limit_bytes=call.vmem_bytes,
        ),
        name=(
            f"flash_attention_backward_block_q_major_{block_q}_block_q_{blocks.block_q_dkv}"
            f"_block_k_major_{block_k}_block_k_{blocks.block_k_dkv}"
        ),
        debug=call.debug,
    )(inputs, saved._replace(statistics=rows.in_blocks(saved.statistics, block_q)))
    if chunks == 1:
        dk, dv = (lax.squeeze(x, (0,)) for x in (dk, dv))
    else:
        dk, dv = (lax.reduce_sum(x, (0,)).astype(inputs.k.dtype) for x in (dk, dv))
    return Inputs(dq, dk, dv, dab[0] if dab else None, None, None)


def _chunks(call: Call, grid: Grid, head_dim: int) -> int:
    """How many chunks the queries are taken in, so that dq takes a quarter of on-chip memory."""
    block = round_up(head_dim, SUBLANES) * round_up(grid.block_q, LANES) * 4
    blocks = max(1, (call.vmem_bytes or LEAST_VMEM) // 4 // block)
    return pl.cdiv(grid.query_blocks, blocks)


def _kernel(call, grid, per_chunk, refs, saved, dq_ref, dk_ref, dv_ref, *others):
    *dab, dq_acc, dk_acc, dv_acc, di_ref = others
    j, i = pl.program_id(2), pl.program_id(3)
    query_block = i
    if per_chunk < grid.query_blocks:
        query_block += lax.div(j, np.int32(grid.key_blocks)) * per_chunk
        j = lax.rem(j, np.int32(grid.key_blocks))

    def of_queries(ref, queries):
        """Rows of a block of queries, 0 beyond the last query: there a block holds anything."""
        x = ref[queries, :]
        if call.q_len % grid.block_q:
            left = call.q_len - query_block * grid.block_q - queries.start
            x = tile.select(lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0) < left, x, 0.0)
        return x

    def start_queries():
        dq_acc[i] = jnp.zeros(dq_acc.shape[1:], jnp.float32)
        o, do = (of_queries(x, slice(0, grid.block_q)) for x in (saved.o, saved.do))
        product = o.astype(jnp.float32) * do.astype(jnp.float32)
        di_ref[i] = tile.over_keys(lax.reduce_sum, tile.transposed(product))

    def start_keys():
        dk_acc[...] = jnp.zeros(dk_acc.shape, jnp.float32)
        dv_acc[...] = jnp.zeros(dv_acc.shape, jnp.float32)

    def start(part):
        q, do = of_queries(refs.q, part.queries), of_queries(saved.do, part.queries)
        s = tile.logits(call, grid, refs, q, part, j)
        return q, do, s, matmul(refs.v[part.keys, :], do, (1, 1))

    def finish(part, started):
        q, do, s, dp = started
        queries, keys = part.queries, part.keys
        m, l = saved.statistics[0:1, queries], saved.statistics[1:2, queries]
        if refs.ab is not None and call.q_len % grid.block_q:
            # Beyond the last query the bias may be nan.
            s = tile.select(l == 0.0, HIDDEN, s)
        p = lax.exp2((s - m) * call.base_2_rate) * tile.select(l == 0.0, 0.0, 1.0 / l)
        ds = p * (dp - di_ref[i, :, queries])
        if tile.is_masked(call, grid, refs, part):
            # 0 times a dp that overflowed is nan.
            ds = tile.select(s == HIDDEN, 0.0, ds)
        for ref in dab:
            ref[queries, keys] = tile.transposed(_scaled(call, ds)).astype(ref.dtype)
        dv_acc[keys, :] += matmul(p.astype(do.dtype), do, (1, 0))
        ds = ds.astype(q.dtype)
        dk_acc[keys, :] += matmul(ds, q, (1, 0))
        dq_acc[i, :, queries] += tile.over_all_keys(refs, refs.k[keys, :], ds)

    def step():
        pl.when(j == 0)(start_queries)
        if call.causal:
            for ref in dab:
                # Where nobody sees a key no part writes.
                ref[...] = jnp.zeros(ref.shape, ref.dtype)
        grid.visit(query_block, j, lambda parts: pipelined(parts, start, finish, _AHEAD))

        @pl.when(j == grid.key_blocks - 1)
        def finish_queries():
            dq_ref[...] = _scaled(call, tile.transposed(dq_acc[i])).astype(dq_ref.dtype)

    pl.when(i == 0)(start_keys)
    if grid.query_blocks % per_chunk:
        pl.when(query_block < grid.query_blocks)(step)
    else:
        step()

    @pl.when(i == per_chunk - 1)
    def finish_keys():
        dk_ref[...] = _scaled(call, dk_acc[...]).astype(dk_ref.dtype)
        dv_ref[...] = dv_acc[...].astype(dv_ref.dtype)


def _scaled(call, x):
    return x if call.sm_scale == 1.0 else x * np.float32(call.sm_scale)
