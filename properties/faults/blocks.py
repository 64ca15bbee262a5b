"""Faults of bookkeeping: grids, index maps, offsets of inner blocks, scratch memory."""

from properties.faults.fault import Fault, fault

_FIRST_STEP = "@pl.when(j == 0)\n        def start_rows"
_LAST_STEP = "@pl.when(j == grid.key_blocks - 1)\n        def finish_"
_FIRST_OF_THEM = "0 : s.shape[0]"

_BIAS_BLOCK = "lambda b, h, i, j: (b, h, *bias_block(i, j))"

FAULTS: dict[str, Fault] = {
    "tail_queries_left_out": fault(
        "the forward has no step for queries that do not fill a block",
        *("forward", "pl.cdiv(q_len, block_q),", "q_len // block_q,"),
    ),
    "tail_queries_left_out_of_the_backward": fault(
        "gradients have no step for queries that do not fill a block",
        *("backward", "query_blocks=pl.cdiv(q_len, block_q),", "query_blocks=q_len // block_q,"),
    ),
    "tail_batch_left_out": fault(
        "batch rows that do not fill a block of them are not computed",
        *("forward", "pl.cdiv(batch, block_b),", "batch // block_b,"),
    ),
    "tail_keys_left_out": fault(
        "keys that do not fill a block are left out",
        *("forward", "call.padded_kv_len // block_k,", "max(call.kv_len // block_k, 1),"),
        source="jax-ml/jax#27224",
    ),
    "inner_keys_at_the_first_offset": fault(
        "the diagonal crosses every tile of keys where it crosses the first of their block",
        *("steps", "else diagonal + query - key", "else diagonal + query"),
    ),
    "inner_queries_at_the_first_offset": fault(
        "the diagonal crosses every tile of queries where it crosses the first of their block",
        *("steps", "else diagonal + query - key", "else diagonal - key"),
    ),
    "inner_keys_once": fault(
        "only the first tile of keys of a major block is computed",
        *("steps", "for key in range(0, self.block_k, self.tile_k):", "for key in (0,):"),
    ),
    "inner_values_of_the_first_block": fault(
        "weights of every inner block meet the values of the first",
        *("forward", "s, row.v[part.keys, :])", f"s, row.v[{_FIRST_OF_THEM}, :])"),
    ),
    "earlier_tiles_of_a_step_forgotten": fault(
        "every tile of a step goes on from what earlier steps left, not from the tile before",
        *("forward", "if queries.start in known:", "if queries.start in known and kept is None:"),
    ),
    "single_step_at_the_first_query": fault(
        "with all keys in one block, every block of queries is masked as the first",
        *("steps", "if self.query_blocks == self.key_blocks == 1:", "if self.key_blocks == 1:"),
    ),
    "first_batch_row_of_a_block": fault(
        "every batch row of a block is computed from the first",
        *("forward", "else ref.at[b] for ref in refs", "else ref.at[0] for ref in refs"),
    ),
    "scratch_of_the_first_batch_row": fault(
        "every batch row of a block goes on from the statistics of the first",
        *("forward", "Running(*(ref.at[b] for ref in scratch))"),
        "Running(*(ref.at[0] for ref in scratch))",
    ),
    "single_step_stores_the_first_batch_row": fault(
        "with all keys in one block, every batch row of a block is stored as the first",
        *(
            "forward",
            "_store(b, queries, outs, residuals, running)\n",
            "_store(0, queries, outs, residuals, running)\n",
        ),
    ),
    "rows_finished_at_the_last_seen_keys": fault(
        "under causal order rows end at the last block of keys that they see, which may not exist",
        *("forward", f"{_LAST_STEP}rows"),
        "@pl.when(j == (grid.last_key_block(i) if call.causal else grid.key_blocks - 1))\n"
        "        def finish_rows",
    ),
    "bias_of_the_first_head": fault(
        "every head gets the bias of the first",
        *("forward", _BIAS_BLOCK, _BIAS_BLOCK.replace("(b, h,", "(b, ZERO,")),
        source="pytorch/pytorch PR#184180",
    ),
    "bias_of_the_first_batch_row": fault(
        "every batch row gets the bias of the first",
        *("forward", _BIAS_BLOCK, _BIAS_BLOCK.replace("(b, h,", "(ZERO, h,")),
    ),
    "bias_of_the_first_keys": fault(
        "every block of keys gets the bias of the first",
        *("forward", _BIAS_BLOCK, "lambda b, h, i, j: (b, h, i, ZERO)"),
    ),
    "bias_of_the_next_queries": fault(
        "the bias that a step without work asks for is that of every step",
        *("forward", "lax.select(j <= grid.last_key_block(i), i, following)", "following"),
    ),
    "bias_of_the_first_head_in_the_backward": fault(
        "gradients of every head are taken with the bias of the first",
        *("backward", "lambda b, h, c, j, i: (b, h, query_block(c, j, i), j)"),
        "lambda b, h, c, j, i: (b, ZERO, query_block(c, j, i), j)",
    ),
    "bias_of_the_first_keys_in_the_backward": fault(
        "gradients of every block of keys are taken with the bias of the first",
        *("backward", "lambda b, h, c, j, i: (b, h, query_block(c, j, i), j)"),
        "lambda b, h, c, j, i: (b, h, query_block(c, j, i), ZERO)",
    ),
    "segments_of_the_first_batch_row": fault(
        "every batch row has the query segments of the first",
        *("forward", "lambda b, h, i, j: (b, i, ZERO, ZERO))"),
        "lambda b, h, i, j: (ZERO, i, ZERO, ZERO))",
    ),
    "segments_of_the_first_keys": fault(
        "every block of keys has the segments of the first",
        *("forward", "lambda b, h, i, j: (b, key_block(i, j), ZERO)"),
        "lambda b, h, i, j: (b, ZERO, ZERO)",
    ),
    "segments_of_the_first_keys_in_the_backward": fault(
        "in the backward every block of keys has the segments of the first",
        *("backward", "lambda b, h, c, j, i: (b, j, ZERO)"),
        "lambda b, h, c, j, i: (b, ZERO, ZERO)",
    ),
    "segments_of_the_first_queries_in_the_backward": fault(
        "in the backward every block of queries has the segments of the first",
        *("backward", "lambda b, h, c, j, i: (b, query_block(c, j, i), ZERO, ZERO)"),
        "lambda b, h, c, j, i: (b, ZERO, ZERO, ZERO)",
    ),
    "scratch_of_another_head": fault(
        "statistics are set back for the first head only",
        *("forward", _FIRST_STEP),
        _FIRST_STEP.replace("j == 0", "(j == 0) & (pl.program_id(1) == 0)"),
    ),
    "scratch_of_other_queries": fault(
        "statistics are set back for the first block of queries only",
        *("forward", _FIRST_STEP),
        _FIRST_STEP.replace("j == 0", "(j == 0) & (i == 0)"),
    ),
    "output_scratch_not_set_back": fault(
        "values are gathered on what the memory held before",
        *("forward", "zip(scratch, Running(_LOWEST, 0.0, 0.0), strict=True)"),
        "zip(scratch[:2], (_LOWEST, 0.0), strict=True)",
        source="jax-ml/jax commit 4de346485d",
    ),
    "dq_scratch_not_set_back": fault(
        "dq is set back, and di made, for the first head only",
        *("backward", "pl.when(j == 0)(start_queries)"),
        "pl.when((j == 0) & (pl.program_id(1) == 0))(start_queries)",
        source="jax-ml/jax PR#18574",
    ),
    "dq_written_too_early": fault(
        "dq is written after the first block of keys",
        *("backward", f"{_LAST_STEP}queries", "@pl.when(j == 0)\n        def finish_queries"),
    ),
    "di_of_the_last_queries": fault(
        "di of all but the first block of queries is made of the output of the last",
        *("backward", "lax.select(j == 0, i, lax.full_like(i, per_chunk))"),
        "lax.select(i == 0, i, lax.full_like(i, per_chunk))",
    ),
    "steps_without_work_ask_beyond_the_last": fault(
        "steps without work ask for a block of queries beyond the last",
        *("backward", "return lax.min(i, last_of_chunk(c))", "return i"),
    ),
    "dk_scratch_not_set_back": fault(
        "dk and dv are gathered on what other blocks of keys left",
        *("backward", "pl.when(i == 0)(start_keys)", "pl.when((i == 0) & (j == 0))(start_keys)"),
    ),
    "shares_of_the_first_chunk": fault(
        "where queries are taken in several chunks, dk and dv are those of the first",
        *("backward", "lax.reduce_sum(x, (0,))", "x[0]"),
    ),
    "chunks_at_the_first_query": fault(
        "every chunk of queries is masked as the first",
        *("backward", "query_block += lax.div(j, np.int32(grid.key_blocks)) * per_chunk", "pass"),
    ),
    "last_chunk_taken_for_full": fault(
        "a last chunk with fewer blocks of queries takes its last one again",
        *("backward", "if grid.query_blocks % per_chunk:", "if False:"),
    ),
    "chunks_left_out": fault(
        "the blocks of queries that do not fill a chunk are left out",
        *("backward", "per_chunk = pl.cdiv(grid.query_blocks, chunks)"),
        "per_chunk = grid.query_blocks // chunks",
    ),
    "dab_of_hidden_blocks_not_written": fault(
        "dab holds what the memory held before where causal order hides a block",
        *("backward", "ref[...] = jnp.zeros(ref.shape, ref.dtype)", "pass"),
        source="jax-ml/jax#20227",
    ),
    "dab_of_the_first_inner_block": fault(
        "every inner block of dab is written to the place of the first",
        *("backward", "ref[queries, keys] =", f"ref[queries, {_FIRST_OF_THEM}] ="),
    ),
    "dab_block_follows_the_queries": fault(
        "dab of a step without work is written where the next step with work has its own",
        *("backward", "(b, h, lax.min(c * per_chunk + i, last_of_chunk(c)), j)"),
        "(b, h, query_block(c, j, i), j)",
    ),
    "inner_keys_of_the_first_block_in_dq": fault(
        "dq of every inner block is gathered from the keys of the first",
        *("backward", "refs.k[keys, :], ds)", f"refs.k[{_FIRST_OF_THEM}, :], ds)"),
    ),
    "inner_values_of_the_first_block_in_the_backward": fault(
        "in the backward the cotangent meets the values of the first inner block",
        *("backward", "refs.v[part.keys, :], do,", f"refs.v[{_FIRST_OF_THEM}, :], do,"),
    ),
    "statistics_of_the_first_inner_queries": fault(
        "in the backward every inner block of queries takes the maxima of the first",
        *("backward", "saved.statistics[0:1, queries]", "saved.statistics[0:1, 0 : s.shape[1]]"),
    ),
    "rows_in_blocks_out_of_order": fault(
        "maxima and sums are cut into blocks as if there were one of them for each query",
        *("rows", ".reshape(*leading, count, blocks, block_q).swapaxes(-2, -3)"),
        ".reshape(*leading, blocks, count, block_q)",
    ),
    "rows_out_of_blocks_out_of_order": fault(
        "maxima and sums come out of several blocks as if there were one",
        *("rows", "blocks.swapaxes(-2, -3).reshape(", "blocks.reshape("),
    ),
    "rows_padded_before_the_first": fault(
        "maxima, sums and segments are padded before the first query, not after the last",
        *("rows", "[(0, missing)]", "[(missing, 0)]"),
    ),
    "default_blocks_too_large": fault(
        "the blocks chosen for the caller do not fit on the chip",
        *("defaults", "limit = vmem_bytes or LEAST_VMEM", "limit = 2**30"),
        source="sgl-project/sglang-jax PR#186",
    ),
    "default_blocks_of_half_tiles": fault(
        "long blocks that are chosen for the caller are not cut into whole tiles",
        *("defaults", "TILE if block > _WHOLE else LANES", "LANES"),
    ),
    "keys_padded_to_tiles": fault(
        "keys are padded to whole tiles, not to whole blocks, and the last block is left out",
        *(
            "attention",
            "round_up(kv_len, blocks.block_k_major)",
            "round_up(kv_len, blocks.block_k)",
        ),
    ),
    "default_blocks_need_not_divide": fault(
        "BlockSizes.get_default gives blocks of keys that do not divide their number",
        *("blocks", "next(b for b in (512, 384, 256, LANES) if kv_len % b == 0)"),
        "min(kv_len, 512)",
    ),
    "default_blocks_of_wide_heads_too_large": fault(
        "BlockSizes.get_default gives blocks that no memory holds where head_dim is large",
        *("blocks", "if d_model > 256:", "if d_model > 2048:"),
    ),
    "vmap_mixes_batch_rows": fault(
        "under vmap an array that is not mapped is repeated in another order than it is read",
        *("differentiation", "array = jnp.broadcast_to(array, (axis_size, *array.shape))"),
        "array = jnp.repeat(array, axis_size, 0).reshape(axis_size, *array.shape)",
    ),
}
