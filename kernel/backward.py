"""The backward kernels: dk and dv in one, dq and the bias gradient in the other.

Both recompute a tile's weights from the saved maximum m and sum l, p = exp(s - m) / l, and from
them, with dp = do vᵀ and di = sum(o · do) of each row,

    ds = (dp - di) · p · sm_scale      dv = pᵀ do      dk = dsᵀ q      dq = ds k      dab = ds

The first runs over queries for a block of keys, the second over keys for a block of queries, so
that each sum is gathered in one place.
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

from kernel import tile
from kernel.tile import ALL, HIDDEN, ZERO, Call, Inputs, matmul

_SEMANTICS = (pltpu.PARALLEL, pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY)


class Saved(NamedTuple):
    """What the backward kernels take beside the inputs; within a kernel, references to blocks.

    Attributes:
      l, m: [batch, heads, q_len, 1] float32, as `forward.forward` returns them.
      do: cotangent of the output, like q.
      di: [batch, heads, q_len, 1] float32, the sum of o · do over head_dim.
    """

    l: Any
    m: Any
    do: Any
    di: Any


def backward_dkv(call: Call, inputs: Inputs, saved: Saved) -> tuple[jax.Array, jax.Array]:
    """Gradients of k and v. The blocks of the call have all backward fields.

    Returns:
      (dk, dv), like k and v.
    """
    batch, heads, q_len, head_dim = inputs.q.shape
    blocks = call.blocks
    block_q, block_k = blocks.block_q_major_dkv, blocks.block_k_major_dkv
    query_blocks = pl.cdiv(q_len, block_q)

    def query_block(key_index, query_index):
        if call.causal:
            # Steps without work come first; they ask for the first block that has some. Where no
            # query sees these keys, that is the last block.
            first = tile.first_query_block(key_index, block_q, block_k)
            return lax.min(lax.max(query_index, first), np.int32(query_blocks - 1))
        return query_index

    query_spec = pl.BlockSpec(
        (None, None, block_q, head_dim), lambda b, h, j, i: (b, h, query_block(j, i), ZERO)
    )
    column_spec = pl.BlockSpec(
        (None, None, block_q, 1), lambda b, h, j, i: (b, h, query_block(j, i), ZERO)
    )
    key_spec = pl.BlockSpec((None, None, block_k, head_dim), lambda b, h, j, i: (b, h, j, ZERO))
    specs = Inputs(
        q=query_spec,
        k=key_spec,
        v=key_spec,
        ab=pl.BlockSpec(
            (None, None, block_q, block_k), lambda b, h, j, i: (b, h, query_block(j, i), j)
        ),
        q_ids=pl.BlockSpec((None, block_q, 1), lambda b, h, j, i: (b, query_block(j, i), ZERO)),
        kv_ids=pl.BlockSpec((None, 1, block_k), lambda b, h, j, i: (b, ZERO, j)),
    )

    return pl.pallas_call(
        functools.partial(_dkv_kernel, call),
        grid=(batch, heads, call.padded_kv_len // block_k, query_blocks),
        in_specs=[
            inputs.only_present(specs),
            Saved(column_spec, column_spec, query_spec, column_spec),
        ],
        out_specs=(key_spec, key_spec),
        out_shape=(
            tile.result(inputs, inputs.k.shape, inputs.k.dtype),
            tile.result(inputs, inputs.v.shape, inputs.v.dtype),
        ),
        scratch_shapes=[pltpu.VMEM((block_k, head_dim), jnp.float32)] * 2,
        compiler_params=pltpu.CompilerParams(dimension_semantics=_SEMANTICS),
        name=(
            f"flash_attention_dkv_block_q_major_{block_q}_block_q_{blocks.block_q_dkv}"
            f"_block_k_major_{block_k}_block_k_{blocks.block_k_dkv}"
        ),
        debug=call.debug,
    )(inputs, saved)


def _dkv_kernel(call, refs, saved, dk_ref, dv_ref, dk_acc, dv_acc):
    key_index, query_index = pl.program_id(2), pl.program_id(3)
    block_q_major, block_k_major = refs.q.shape[0], refs.k.shape[0]
    block_q, block_k = call.blocks.block_q_dkv, call.blocks.block_k_dkv

    @pl.when(query_index == 0)
    def start_keys():
        dk_acc[...] = jnp.zeros(dk_acc.shape, jnp.float32)
        dv_acc[...] = jnp.zeros(dv_acc.shape, jnp.float32)

    def visit(query_start, key_start):
        queries, keys = pl.ds(query_start, block_q), pl.ds(key_start, block_k)
        first_query = query_index * block_q_major + query_start
        first_key = key_index * block_k_major + key_start
        s = tile.logits(call, refs, queries, keys, first_query=first_query, first_key=first_key)
        q, do = refs.q[queries, :], saved.do[queries, :]
        if call.q_len % block_q_major:
            # Beyond the last query a block holds anything; in a sum over queries it must be 0.
            inside = tile.positions((block_q, 1), 0, first_query) < call.q_len
            s = tile.select(inside, s, HIDDEN)
            q = tile.select(inside, q, 0.0)
            do = tile.select(inside, do, 0.0)
        p, ds = _weights_and_gradient(call, s, saved, queries, do, refs.v[keys, :])
        dv_acc[keys, :] += matmul(p.astype(do.dtype), do, (0, 0))
        dk_acc[keys, :] += matmul(ds.astype(q.dtype), q, (0, 0))

    def visit_queries():
        for query_start in range(0, block_q_major, block_q):
            for key_start in range(0, block_k_major, block_k):
                visit(query_start, key_start)

    if call.causal:
        first = tile.first_query_block(key_index, block_q_major, block_k_major)
        pl.when(query_index >= first)(visit_queries)
    else:
        visit_queries()

    @pl.when(query_index == pl.num_programs(3) - 1)
    def finish_keys():
        dk_ref[...] = dk_acc[...].astype(dk_ref.dtype)
        dv_ref[...] = dv_acc[...].astype(dv_ref.dtype)


def backward_dq(call: Call, inputs: Inputs, saved: Saved) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of q and, where there is a bias, of the bias. Blocks as for `backward_dkv`.

    Returns:
      (dq, dab), like q and ab; dab is None without a bias.
    """
    batch, heads, q_len, head_dim = inputs.q.shape
    blocks, ab = call.blocks, inputs.ab
    block_q, block_k = blocks.block_q_dq, blocks.block_k_major_dq

    def key_block(query_index, key_index):
        if call.causal:
            return lax.min(key_index, tile.last_key_block(query_index, block_q, block_k))
        return key_index

    query_spec = pl.BlockSpec((None, None, block_q, head_dim), lambda b, h, i, j: (b, h, i, ZERO))
    column_spec = pl.BlockSpec((None, None, block_q, 1), lambda b, h, i, j: (b, h, i, ZERO))
    key_spec = pl.BlockSpec(
        (None, None, block_k, head_dim), lambda b, h, i, j: (b, h, key_block(i, j), ZERO)
    )
    specs = Inputs(
        q=query_spec,
        k=key_spec,
        v=key_spec,
        ab=pl.BlockSpec(
            (None, None, block_q, block_k), lambda b, h, i, j: (b, h, i, key_block(i, j))
        ),
        q_ids=pl.BlockSpec((None, block_q, 1), lambda b, h, i, j: (b, i, ZERO)),
        kv_ids=pl.BlockSpec((None, 1, block_k), lambda b, h, i, j: (b, ZERO, key_block(i, j))),
    )
    # The bias gradient has a tile for every step, those without work too: they write zeros.
    dab_spec = pl.BlockSpec((None, None, block_q, block_k), lambda b, h, i, j: (b, h, i, j))

    return pl.pallas_call(
        functools.partial(_dq_kernel, call),
        grid=(batch, heads, pl.cdiv(q_len, block_q), call.padded_kv_len // block_k),
        in_specs=[
            inputs.only_present(specs),
            Saved(column_spec, column_spec, query_spec, column_spec),
        ],
        out_specs=(query_spec, None if ab is None else dab_spec),
        out_shape=(
            tile.result(inputs, inputs.q.shape, inputs.q.dtype),
            None if ab is None else tile.result(inputs, ab.shape, ab.dtype),
        ),
        scratch_shapes=[pltpu.VMEM((block_q, head_dim), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=_SEMANTICS),
        name=(
            f"flash_attention_dq_block_q_{block_q}"
            f"_block_k_major_{block_k}_block_k_{blocks.block_k_dq}"
        ),
        debug=call.debug,
    )(inputs, saved)


def _dq_kernel(call, refs, saved, dq_ref, dab_ref, dq_acc):
    query_index, key_index = pl.program_id(2), pl.program_id(3)
    block_q, block_k_major = refs.q.shape[0], refs.k.shape[0]
    block_k = call.blocks.block_k_dq

    @pl.when(key_index == 0)
    def start_queries():
        dq_acc[...] = jnp.zeros(dq_acc.shape, jnp.float32)

    def visit_keys():
        for key_start in range(0, block_k_major, block_k):
            keys = pl.ds(key_start, block_k)
            first_query, first_key = query_index * block_q, key_index * block_k_major + key_start
            s = tile.logits(call, refs, ALL, keys, first_query=first_query, first_key=first_key)
            _, ds = _weights_and_gradient(call, s, saved, ALL, saved.do[...], refs.v[keys, :])
            if dab_ref is not None:
                dab_ref[:, keys] = ds.astype(dab_ref.dtype)
            dq_acc[...] += matmul(ds.astype(refs.k.dtype), refs.k[keys, :], (1, 0))

    if call.causal:
        last = tile.last_key_block(query_index, block_q, block_k_major)
        pl.when(key_index <= last)(visit_keys)
        if dab_ref is not None:

            @pl.when(key_index > last)
            def hidden_block():
                dab_ref[...] = jnp.zeros(dab_ref.shape, dab_ref.dtype)
    else:
        visit_keys()

    @pl.when(key_index == pl.num_programs(3) - 1)
    def finish_queries():
        dq_ref[...] = dq_acc[...].astype(dq_ref.dtype)


def _weights_and_gradient(call, s, saved, queries, do, v):
    """(p, ds) of a tile from its logits, both exactly 0 where a key is hidden.

    Both are selected: the sum l of a row that sees nothing is 0, and 0 times an overflowed dp is
    NaN.
    """
    visible = s != HIDDEN
    p = tile.select(visible, lax.exp(s - saved.m[queries, :]) / saved.l[queries, :], 0.0)
    dp = matmul(do, v, (1, 1))
    ds = (dp - saved.di[queries, :]) * p
    if call.sm_scale != 1.0:
        ds *= np.float32(call.sm_scale)
    return p, tile.select(visible, ds, 0.0)
