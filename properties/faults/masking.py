"""Faults in which keys a query sees: causal order, segments, tails, hidden positions."""

from properties.faults.fault import Fault, fault

_CAUSAL = "_count(s, 0) <= _count(s, 1) + part.diagonal"
_PLACE = "diagonal = query_block * self.block_q - key_block * self.block_k"
_SEGMENTS = "refs.kv_ids[keys, :] == refs.q_ids[:, queries]"
_BACKWARD_LOGITS = "s = tile.logits(call, grid, refs, q, part, j)"
_INSIDE = "lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0) < left"

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
        "the diagonal crosses every block of queries where it crosses the first",
        *("steps", _PLACE, "diagonal = -key_block * self.block_k"),
    ),
    "causal_forgets_the_key_block": fault(
        "the diagonal crosses every block of keys where it crosses the first",
        *("steps", _PLACE, "diagonal = query_block * self.block_q"),
        source="jax-ml/jax commit f15f9717c3",
    ),
    "causal_off_with_segments": fault(
        "a block that the diagonal crosses is not masked where there are segment ids",
        *("tile", "if part.diagonal is not None:"),
        "if part.diagonal is not None and refs.q_ids is None:",
    ),
    "causal_off_with_bias": fault(
        "a block that the diagonal crosses is not masked where there is a bias",
        *("tile", "if part.diagonal is not None:"),
        "if part.diagonal is not None and refs.ab is None:",
    ),
    "last_key_block_of_the_first_query": fault(
        "of the keys of a block only those are copied that its first query sees",
        *("steps", "lax.div((query_block + 1) * self.block_q - 1,"),
        "lax.div(query_block * self.block_q,",
    ),
    "last_key_block_asked_for_as_the_first": fault(
        "at the last block of keys that a query sees, the first is copied again",
        *("forward", "j <= grid.last_key_block(i), j,", "j < grid.last_key_block(i), j,"),
    ),
    "first_query_block_after_the_diagonal": fault(
        "in place of the first block of queries that sees the keys the next one is copied",
        *("steps", "lax.div(key_block * self.block_k,"),
        "lax.div((key_block + 1) * self.block_k,",
    ),
    "diagonal_block_skipped": fault(
        "a block of keys that begins after the first query of a block is left out",
        *("steps", "last = ((i + 1) * self.block_q - 1) // self.block_k", "last = first"),
        source="jax-ml/jax PR#25647",
    ),
    "diagonal_block_skipped_among_many": fault(
        "where the diagonal crosses at many places, keys after the first query are left out",
        *("steps", "crossed = (diagonal > -self.block_q)", "crossed = (diagonal >= 0)"),
    ),
    "diagonal_places_of_the_first_queries": fault(
        "only where it crosses the first block of queries is the diagonal known to cross",
        *("steps", "for i in range(self.query_blocks):", "for i in range(1):"),
    ),
    "visible_block_skipped": fault(
        "a block of keys that ends just before the first query is left out",
        *("steps", "pl.when(diagonal >= self.block_k - 1)", "pl.when(diagonal > self.block_k)"),
    ),
    "crossed_block_taken_for_visible": fault(
        "a block is not masked as soon as its first query sees its first key",
        *("steps", "pl.when(diagonal >= self.block_k - 1)", "pl.when(diagonal >= 0)"),
    ),
    "crossed_tile_taken_for_visible": fault(
        "a tile is not masked if the diagonal passes its queries, whatever it has of keys",
        *("steps", "if place >= keys - 1:", "if place >= queries - 1:"),
    ),
    "seen_keys_one_short": fault(
        "the key that only the last query of a tile sees is left out",
        *("steps", "seen = place + queries  #", "seen = place + queries - 1  #"),
    ),
    "seen_keys_rounded_down": fault(
        "keys that do not fill a row of lanes are left out where the diagonal crosses a tile",
        *("steps", "round_up(seen, LANES)", "max(LANES, seen // LANES * LANES)"),
    ),
    "causal_missing_in_the_backward": fault(
        "where the diagonal crosses, gradients are taken of attention without causal order",
        *("backward", _BACKWARD_LOGITS),
        _BACKWARD_LOGITS.replace("part,", "part._replace(diagonal=None),"),
        source="jax-ml/jax commit f132527792",
    ),
    "padded_keys_visible": fault(
        "keys that only fill up the last block take part",
        *("tile", "if lacks_keys(call, grid, part):", "if False:"),
        source="flashinfer-ai/flashinfer#3716",
    ),
    "one_padded_key_visible": fault(
        "the first key beyond the last takes part",
        *("tile", "_count(s, 0) < call.kv_len", "_count(s, 0) <= call.kv_len"),
    ),
    "padded_keys_at_the_first_offset": fault(
        "every tile of a block of keys is taken for the first where keys are missing",
        *("tile", "call.kv_len - keys.start - key_block", "call.kv_len - key_block"),
    ),
    "padded_keys_counted_in_every_block": fault(
        "every block of keys is taken for the first where keys are missing",
        *("tile", " - key_block * grid.block_k)", ")"),
    ),
    "padded_keys_of_the_first_block": fault(
        "keys are taken to be missing only where the first block lacks some",
        *("tile", "return (grid.key_blocks - 1) * grid.block_k + part", "return part"),
    ),
    "padded_keys_visible_under_causal": fault(
        "causal order is taken to hide the padding, which it does only for as many queries as keys",
        *("tile", "if call.causal and call.q_len <= call.kv_len:", "if call.causal:"),
    ),
    "padded_keys_visible_to_late_queries": fault(
        "causal order is taken to hide the padding from queries that stand beyond the last key",
        *("tile", "call.q_len <= call.kv_len:", "call.q_len <= call.padded_kv_len:"),
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
        "refs.kv_ids[keys, :].astype(jnp.float32) == refs.q_ids[:, queries].astype(jnp.float32)",
    ),
    "segments_as_int16": fault(
        "ids are cut to 16 bits",
        *("attention", "ids.astype(jnp.int32)", "ids.astype(jnp.int16).astype(jnp.int32)"),
    ),
    "segments_in_order": fault(
        "a query sees keys of earlier segments too",
        "tile",
        _SEGMENTS,
        _SEGMENTS.replace("==", "<="),
    ),
    "segment_zero_is_padding": fault(
        "the id 0 is taken for padding",
        *("tile", _SEGMENTS, f"({_SEGMENTS}) & (refs.kv_ids[keys, :] != 0)"),
    ),
    "negative_segments_are_padding": fault(
        "negative ids are taken for padding",
        *("tile", _SEGMENTS, f"({_SEGMENTS}) & (refs.kv_ids[keys, :] >= 0)"),
    ),
    "segments_missing_in_the_backward": fault(
        "gradients are taken of attention without segments",
        *("backward", _BACKWARD_LOGITS),
        _BACKWARD_LOGITS.replace("refs,", "refs._replace(q_ids=None, kv_ids=None),"),
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
        *("forward", "share = 1.0 / tile.select(l == 0.0, 1.0, l)", "share = 1.0 / l"),
        source="apple/axlearn PR#1132",
    ),
    "masked_rows_are_nan": fault(
        "-inf is subtracted from -inf in a row that sees no key",
        *("forward", "_LOWEST if before is None", "-np.inf if before is None"),
        source="pytorch/pytorch#103963",
    ),
    "blocks_hidden_first_are_nan": fault(
        "a row whose first block of keys is hidden subtracts -inf from -inf",
        *("forward", "Running(_LOWEST, 0.0, 0.0)", "Running(-np.inf, 0.0, 0.0)"),
    ),
    "masked_rows_have_gradients": fault(
        "the backward does not tell a row that sees no key",
        *("backward", "tile.select(l == 0.0, 0.0, 1.0 / l)", "(1.0 / l)"),
        source="Dao-AILab/flash-attention#1947",
    ),
    "hidden_gradient_is_multiplied_away": fault(
        "the gradient of a hidden logit is 0 times what stands there, NaN if that overflows",
        *("backward", "ds = tile.select(s == HIDDEN, 0.0, ds)", "pass"),
        source="ROCm/aiter#3551",
    ),
    "hidden_gradient_of_segments_is_multiplied_away": fault(
        "segments are forgotten where it is told which tiles have hidden positions",
        *("tile", "if refs.ab is not None or refs.q_ids is not None or part"),
        "if refs.ab is not None or part",
    ),
    "tail_queries_take_part": fault(
        "gradients gather what stands beyond the last query",
        *("backward", "        if call.q_len % grid.block_q:\n", "        if False:\n"),
        source="NVIDIA/cudnn-frontend#160",
    ),
    "one_tail_query_takes_part": fault(
        "gradients gather the first row beyond the last query",
        *("backward", "< left, x, 0.0)", "<= left, x, 0.0)"),
    ),
    "tail_queries_times_zero": fault(
        "rows beyond the last query are multiplied by 0 instead of left out, NaN if they are NaN",
        *("backward", f"x = tile.select({_INSIDE}, x, 0.0)", f"x *= ({_INSIDE}).astype(x.dtype)"),
    ),
    "tail_bias_takes_part": fault(
        "gradients gather what stands of the bias beyond the last query",
        *("backward", "if refs.ab is not None and call.q_len % grid.block_q:", "if False:"),
    ),
}
