"""Faults in which keys a query sees: causal order, segments, tails, hidden positions."""

from properties.faults.fault import Fault, fault

_CAUSAL = "positions(s.shape, 1, first_key) <= positions(s.shape, 0, first_query)"
_SEGMENTS = "refs.q_ids[queries, :] == refs.kv_ids[:, keys]"

FAULTS: dict[str, Fault] = {
    "causal_hides_the_diagonal": fault(
        "a query does not see the key of its own position",
        "tile",
        _CAUSAL,
        _CAUSAL.replace("<=", "<"),
    ),
    "causal_sees_one_ahead": fault(
        "a query sees the key after its own", "tile", _CAUSAL, f"{_CAUSAL} + 1"
    ),
    "causal_counts_from_the_end": fault(
        "with unequal lengths the last query and the last key are aligned, not the first",
        *("tile", _CAUSAL, f"{_CAUSAL} + (call.kv_len - call.q_len)"),
        source="Dao-AILab/flash-attention#282",
    ),
    "causal_forgets_the_query_block": fault(
        "every block of queries is masked as the first one",
        *("tile", _CAUSAL, _CAUSAL.replace("first_query", "0")),
    ),
    "causal_forgets_the_key_block": fault(
        "every block of keys is masked as the first one",
        *("tile", _CAUSAL, _CAUSAL.replace("first_key", "0")),
        source="jax-ml/jax commit f15f9717c3",
    ),
    "causal_off_with_segments": fault(
        "causal order is dropped where there are segment ids",
        *("tile", "    if call.causal:\n", "    if call.causal and refs.q_ids is None:\n"),
    ),
    "causal_off_with_bias": fault(
        "causal order is dropped where there is a bias",
        *("tile", "    if call.causal:\n", "    if call.causal and refs.ab is None:\n"),
    ),
    "last_key_block_of_the_first_query": fault(
        "causal steps end at the keys that the first query of a block sees",
        *("tile", "lax.div((query_block + 1) * block_q - 1,", "lax.div(query_block * block_q,"),
    ),
    "first_query_block_after_the_diagonal": fault(
        "for dk and dv the first block of queries that sees the keys is left out",
        *("tile", "lax.div(key_block * block_k,", "lax.div((key_block + 1) * block_k,"),
    ),
    "diagonal_block_skipped": fault(
        "the forward leaves out the block that the diagonal crosses",
        *("forward", "pl.when(key_index <= last)", "pl.when(key_index < last)"),
    ),
    "diagonal_block_skipped_for_dkv": fault(
        "dk and dv leave out the block of queries that the diagonal crosses",
        *("backward", "pl.when(query_index >= first)", "pl.when(query_index > first)"),
        source="jax-ml/jax PR#25647",
    ),
    "diagonal_block_skipped_for_dq": fault(
        "dq leaves out the block of keys that the diagonal crosses",
        *("backward", "pl.when(key_index <= last)", "pl.when(key_index < last)"),
    ),
    "causal_missing_in_dq": fault(
        "dq is taken of attention without causal order",
        *("backward", "s = tile.logits(call, refs, ALL, keys,"),
        "s = tile.logits(type(call)(**(vars(call) | {'causal': False})), refs, ALL, keys,",
        source="jax-ml/jax commit f132527792",
    ),
    "padded_keys_visible": fault(
        "keys that only fill up the last block take part",
        *("tile", "if call.padded_kv_len != call.kv_len:", "if False:"),
        source="flashinfer-ai/flashinfer#3716",
    ),
    "one_padded_key_visible": fault(
        "the first key beyond the last takes part",
        *("tile", "positions(s.shape, 1, first_key) < call.kv_len"),
        "positions(s.shape, 1, first_key) <= call.kv_len",
    ),
    "padded_keys_visible_under_causal": fault(
        "causal order is taken to hide the padding, which it does only for as many queries as keys",
        *("tile", "if call.padded_kv_len != call.kv_len:"),
        "if call.padded_kv_len != call.kv_len and not call.causal:",
    ),
    "segments_ignored": fault(
        "queries see keys of all segments",
        "tile",
        "if refs.q_ids is not None:",
        "if False:",
        source="AI-Hypercomputer/maxtext#4476",
    ),
    "segments_as_float32": fault(
        "ids are compared as float32, in which large neighbours are equal",
        *("tile", _SEGMENTS),
        "refs.q_ids[queries, :].astype(jnp.float32) == refs.kv_ids[:, keys].astype(jnp.float32)",
    ),
    "segments_as_int16": fault(
        "ids are cut to 16 bits",
        *("attention", "return ids.astype(jnp.int32)"),
        "return ids.astype(jnp.int16).astype(jnp.int32)",
    ),
    "segments_in_order": fault(
        "a query sees keys of earlier segments too",
        "tile",
        _SEGMENTS,
        _SEGMENTS.replace("==", ">="),
    ),
    "segment_zero_is_padding": fault(
        "the id 0 is taken for padding",
        *("tile", _SEGMENTS, f"({_SEGMENTS}) & (refs.kv_ids[:, keys] != 0)"),
    ),
    "negative_segments_are_padding": fault(
        "negative ids are taken for padding",
        *("tile", _SEGMENTS, f"({_SEGMENTS}) & (refs.kv_ids[:, keys] >= 0)"),
    ),
    "segments_missing_in_dkv": fault(
        "dk and dv are taken of attention without segments",
        *("backward", "s = tile.logits(call, refs, queries, keys,"),
        "s = tile.logits(call, refs._replace(q_ids=None, kv_ids=None), queries, keys,",
    ),
    "segments_missing_in_dq": fault(
        "dq and dab are taken of attention without segments",
        *("backward", "s = tile.logits(call, refs, ALL, keys,"),
        "s = tile.logits(call, refs._replace(q_ids=None, kv_ids=None), ALL, keys,",
    ),
    "hidden_by_a_large_number": fault(
        "hidden logits are -1e30 instead of -inf: a row that sees nothing averages everything",
        *("tile", "s = select(mask, s, HIDDEN)", "s = select(mask, s, -1e30)"),
    ),
    "hidden_by_subtraction": fault(
        "1e9 is taken off hidden logits, which large ones survive",
        *("tile", "s = select(mask, s, HIDDEN)", "s = select(mask, s, s - 1e9)"),
    ),
    "infinite_bias_is_scaled": fault(
        "a bias of -inf is left to the scale, and 0 times -inf is NaN",
        *("tile", "visible.append(ab != HIDDEN)", "pass"),
    ),
    "masked_rows_divide_by_zero": fault(
        "the output of a row that sees no key is 0 / 0",
        *(
            "forward",
            "tile.select(l == 0.0, 0.0, acc / tile.select(l == 0.0, 1.0, l))",
            "(acc / l)",
        ),
        source="apple/axlearn PR#1132",
    ),
    "masked_rows_are_nan": fault(
        "-inf is subtracted from -inf in a row that sees no key",
        *("forward", "m = tile.row_max(s)\n        p = lax.exp(s - _finite(m))"),
        "m = tile.row_max(s)\n        p = lax.exp(s - m)",
        source="pytorch/pytorch#103963",
    ),
    "blocks_hidden_first_are_nan": fault(
        "a row whose first block of keys is hidden subtracts -inf from -inf",
        *("forward", "rescale = lax.exp(m_before - _finite(m))", "rescale = lax.exp(m_before - m)"),
    ),
    "masked_rows_have_gradients": fault(
        "the backward does not tell a row that sees no key",
        *(
            "backward",
            "p = tile.select(visible, lax.exp(s - saved.m[queries, :]) / saved.l[queries, :], 0.0)",
        ),
        "p = lax.exp(s - saved.m[queries, :]) / saved.l[queries, :]",
        source="Dao-AILab/flash-attention#1947",
    ),
    "hidden_gradient_is_multiplied_away": fault(
        "the gradient of a hidden logit is 0 times what stands there, NaN if that overflows",
        *("backward", "return p, tile.select(visible, ds, 0.0)", "return p, ds"),
        source="ROCm/aiter#3551",
    ),
    "tail_queries_take_part": fault(
        "dk and dv gather what stands beyond the last query",
        *("backward", "if call.q_len % block_q_major:", "if False:"),
        source="NVIDIA/cudnn-frontend#160",
    ),
    "one_tail_query_takes_part": fault(
        "dk and dv gather the first row beyond the last query",
        *("backward", "tile.positions((block_q, 1), 0, first_query) < call.q_len"),
        "tile.positions((block_q, 1), 0, first_query) <= call.q_len",
    ),
    "tail_queries_times_zero": fault(
        "queries beyond the last are multiplied by 0 instead of left out, NaN if they are NaN",
        *("backward", "            q = tile.select(inside, q, 0.0)\n", ""),
    ),
    "tail_cotangents_times_zero": fault(
        "cotangents beyond the last query are multiplied by 0 instead of left out",
        *("backward", "            do = tile.select(inside, do, 0.0)\n", ""),
    ),
}
