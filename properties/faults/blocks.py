"""Faults of bookkeeping: grids, index maps, offsets of inner blocks, scratch memory."""

from properties.faults.fault import Fault, fault

_FIRST_STEP = "@pl.when(key_index == 0)\n    def start_rows"

FAULTS: dict[str, Fault] = {
    "tail_queries_left_out": fault(
        "the forward has no step for queries that do not fill a block",
        *("forward", "pl.cdiv(q_len, block_q),", "q_len // block_q,"),
    ),
    "tail_queries_left_out_of_dkv": fault(
        "dk and dv have no step for queries that do not fill a block",
        *("backward", "query_blocks = pl.cdiv(q_len, block_q)", "query_blocks = q_len // block_q"),
    ),
    "tail_queries_left_out_of_dq": fault(
        "dq has no step for queries that do not fill a block",
        *("backward", "pl.cdiv(q_len, block_q), call.padded", "q_len // block_q, call.padded"),
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
        "inner blocks of keys are masked as the first of their major block",
        *("forward", "first_key=first_key + start)", "first_key=first_key)"),
    ),
    "inner_keys_once": fault(
        "only the first inner block of a major block is visited",
        *("forward", "for start in range(0, block_k_major, block_k):", "for start in (0,):"),
    ),
    "inner_values_of_the_first_block": fault(
        "weights of every inner block meet the values of the first",
        *("forward", "row.v[keys, :], (1, 0))", "row.v[pl.ds(0, block_k), :], (1, 0))"),
    ),
    "single_step_at_the_first_query": fault(
        "with all keys in one tile, every block of queries is masked as the first",
        *("forward", "ALL, ALL, first_query=first_query,", "ALL, ALL, first_query=0,"),
    ),
    "first_batch_row_of_a_block": fault(
        "every batch row of a block is computed from the first",
        *("forward", "row, keys = _batch_row(refs, b)", "row, keys = _batch_row(refs, 0)"),
    ),
    "first_batch_row_of_a_single_step": fault(
        "with all keys in one tile, every batch row of a block is computed from the first",
        *("forward", "        row = _batch_row(refs, b)", "        row = _batch_row(refs, 0)"),
    ),
    "bias_of_the_first_head": fault(
        "every head gets the bias of the first",
        *("forward", "lambda b, h, i, j: (b, h, i, key_block(i, j))"),
        "lambda b, h, i, j: (b, ZERO, i, key_block(i, j))",
        source="pytorch/pytorch PR#184180",
    ),
    "bias_of_the_first_batch_row": fault(
        "every batch row gets the bias of the first",
        *("forward", "lambda b, h, i, j: (b, h, i, key_block(i, j))"),
        "lambda b, h, i, j: (ZERO, h, i, key_block(i, j))",
    ),
    "bias_of_the_first_keys": fault(
        "every block of keys gets the bias of the first",
        *("forward", "lambda b, h, i, j: (b, h, i, key_block(i, j))"),
        "lambda b, h, i, j: (b, h, i, ZERO)",
    ),
    "bias_of_the_first_head_in_dkv": fault(
        "dk and dv of every head are taken with the bias of the first",
        *("backward", "lambda b, h, j, i: (b, h, query_block(j, i), j)"),
        "lambda b, h, j, i: (b, ZERO, query_block(j, i), j)",
    ),
    "bias_of_the_first_head_in_dq": fault(
        "dq and dab of every head are taken with the bias of the first",
        *(
            "backward",
            "(None, None, block_q, block_k), lambda b, h, i, j: (b, h, i, key_block(i, j))",
        ),
        "(None, None, block_q, block_k), lambda b, h, i, j: (b, ZERO, i, key_block(i, j))",
    ),
    "segments_of_the_first_batch_row": fault(
        "every batch row has the query segments of the first",
        *("forward", "lambda b, h, i, j: (b, i, ZERO))", "lambda b, h, i, j: (ZERO, i, ZERO))"),
    ),
    "segments_of_the_first_keys": fault(
        "every block of keys has the segments of the first",
        *("forward", "lambda b, h, i, j: (b, ZERO, key_block(i, j))"),
        "lambda b, h, i, j: (b, ZERO, ZERO)",
    ),
    "segments_of_the_first_keys_in_dq": fault(
        "for dq every block of keys has the segments of the first",
        *("backward", "lambda b, h, i, j: (b, ZERO, key_block(i, j))"),
        "lambda b, h, i, j: (b, ZERO, ZERO)",
    ),
    "segments_of_the_first_queries_in_dkv": fault(
        "for dk and dv every block of queries has the segments of the first",
        *("backward", "lambda b, h, j, i: (b, query_block(j, i), ZERO))"),
        "lambda b, h, j, i: (b, ZERO, ZERO))",
    ),
    "scratch_of_another_head": fault(
        "statistics are set back for the first head only",
        *("forward", _FIRST_STEP),
        _FIRST_STEP.replace("key_index == 0", "(key_index == 0) & (pl.program_id(1) == 0)"),
    ),
    "scratch_of_other_queries": fault(
        "statistics are set back for the first block of queries only",
        *("forward", _FIRST_STEP),
        _FIRST_STEP.replace("key_index == 0", "(key_index == 0) & (query_index == 0)"),
    ),
    "output_scratch_not_set_back": fault(
        "values are gathered on what the memory held before",
        *("forward", "        acc_ref[...] = jnp.zeros(acc_ref.shape, jnp.float32)\n", ""),
        source="jax-ml/jax commit 4de346485d",
    ),
    "dq_scratch_not_set_back": fault(
        "dq is gathered on what other blocks of queries left",
        *("backward", "@pl.when(key_index == 0)\n    def start_queries"),
        "@pl.when((key_index == 0) & (query_index == 0))\n    def start_queries",
        source="jax-ml/jax PR#18574",
    ),
    "dk_scratch_not_set_back": fault(
        "dk is gathered on what other blocks of keys left",
        *("backward", "        dk_acc[...] = jnp.zeros(dk_acc.shape, jnp.float32)\n"),
        "        zeros = jnp.zeros(dk_acc.shape, jnp.float32)\n"
        "        pl.when(key_index == 0)(lambda: dk_acc.__setitem__(..., zeros))\n",
    ),
    "dab_of_hidden_blocks_not_written": fault(
        "dab holds what the memory held before where causal order hides a block",
        *("backward", "dab_ref[...] = jnp.zeros(dab_ref.shape, dab_ref.dtype)", "pass"),
        source="jax-ml/jax#20227",
    ),
    "dab_of_the_first_inner_block": fault(
        "every inner block of dab is written to the place of the first",
        *("backward", "dab_ref[:, keys] =", "dab_ref[:, pl.ds(0, block_k)] ="),
    ),
    "dab_block_follows_the_keys": fault(
        "dab is written where causal order last needed keys, not where it belongs",
        *("backward", "lambda b, h, i, j: (b, h, i, j))\n\n    return"),
        "lambda b, h, i, j: (b, h, i, key_block(i, j)))\n\n    return",
    ),
    "inner_queries_at_the_first_offset": fault(
        "for dk and dv inner blocks of queries are masked as the first of their major block",
        *("backward", "first_query = query_index * block_q_major + query_start"),
        "first_query = query_index * block_q_major",
    ),
    "inner_keys_at_the_first_offset_in_dkv": fault(
        "for dk and dv inner blocks of keys are masked as the first of their major block",
        *("backward", "first_key = key_index * block_k_major + key_start\n        s"),
        "first_key = key_index * block_k_major\n        s",
    ),
    "inner_keys_at_the_first_offset_in_dq": fault(
        "for dq inner blocks of keys are masked as the first of their major block",
        *("backward", "query_index * block_q, key_index * block_k_major + key_start"),
        "query_index * block_q, key_index * block_k_major",
    ),
    "inner_keys_of_the_first_block_in_dq": fault(
        "dq of every inner block is gathered from the keys of the first",
        *("backward", "refs.k[keys, :], (1, 0))", "refs.k[pl.ds(0, block_k), :], (1, 0))"),
    ),
    "inner_values_of_the_first_block_in_dq": fault(
        "for dq the cotangent meets the values of the first inner block",
        *(
            "backward",
            "saved.do[...], refs.v[keys, :])",
            "saved.do[...], refs.v[pl.ds(0, block_k), :])",
        ),
    ),
    "statistics_of_the_first_inner_queries": fault(
        "for dk and dv every inner block of queries takes the maxima of the first",
        *("backward", "saved.m[queries, :]", "saved.m[pl.ds(0, s.shape[0]), :]"),
    ),
    "default_blocks_too_large": fault(
        "the blocks chosen for the caller do not fit on the chip",
        *("blocks", "_DEFAULT_BYTES = 9 * 2**20", "_DEFAULT_BYTES = 900 * 2**20"),
        source="sgl-project/sglang-jax PR#186",
    ),
    "default_blocks_need_not_divide": fault(
        "BlockSizes.get_default gives blocks of keys that do not divide their number",
        *("blocks", "        while kv_len % block_k:\n            block_k -= LANES\n", ""),
    ),
    "vmap_mixes_batch_rows": fault(
        "under vmap an array that is not mapped is repeated in another order than it is read",
        *("differentiation", "array = jnp.broadcast_to(array, (axis_size, *array.shape))"),
        "array = jnp.repeat(array, axis_size, 0).reshape(axis_size, *array.shape)",
    ),
}
