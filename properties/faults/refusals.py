"""Faults of the contract: refusals dropped, loosened or of another kind, options ignored."""

from properties.faults.fault import Fault, fault

FAULTS: dict[str, Fault] = {
    "causal_always": fault(
        "the option causal is ignored",
        "attention",
        "causal=bool(causal),",
        "causal=True,",
        source="google/torchax#39",
    ),
    "integers_as_flags": fault(
        "1 is taken for True",
        *("checks", "isinstance(flag, bool | np.bool_)", "isinstance(flag, bool | np.bool_ | int)"),
    ),
    "rank_at_least_four": fault(
        "arrays of rank 5 are not refused for their rank",
        *("checks", "if len(array.shape) != 4:", "if len(array.shape) < 4:"),
    ),
    "heads_not_compared": fault(
        "k and v may have other heads than q",
        *("checks", '((0, "batch", batch), (1, "heads", heads))', '((0, "batch", batch),)'),
    ),
    "batch_not_compared": fault(
        "k and v may have another batch than q",
        *("checks", '((0, "batch", batch), (1, "heads", heads))', '((1, "heads", heads),)'),
    ),
    "longer_values_accepted": fault(
        "v may be longer than k",
        *("checks", "if v.shape[2] != kv_len:", "if v.shape[2] < kv_len:"),
    ),
    "head_dim_of_values_a_value_error": fault(
        "an unsupported head_dim of v is refused by the wrong exception",
        *(
            "checks",
            'raise NotImplementedError(\n            f"v has',
            'raise ValueError(\n            f"v has',
        ),
    ),
    "empty_arrays_accepted": fault(
        "a dimension may be zero", "checks", "if 0 in array.shape:", "if 0 in array.shape[:1]:"
    ),
    "bias_is_broadcast": fault(
        "a bias of another shape is not refused",
        *("checks", '[("ab", ab, (batch, heads, q_len, kv_len))]'),
        '[("ab", ab, () if ab is None else tuple(ab.shape))]',
        source="jax-ml/jax#23701",
    ),
    "float16_accepted": fault(
        "float16 arrays are not refused",
        *(
            "checks",
            '_FLOATS = ("float32", "bfloat16")',
            '_FLOATS = ("float32", "bfloat16", "float16")',
        ),
    ),
    "mixed_dtypes_accepted": fault(
        "k and v may have another dtype than q",
        *("checks", "if array.dtype != q.dtype:", "if False:"),
    ),
    "long_segment_ids_accepted": fault(
        "ids of 64 bits are cut to 32",
        *("checks", " or ids.dtype.itemsize > 4", ""),
    ),
    "mixed_segment_dtypes_accepted": fault(
        "the halves of the segment ids may differ in dtype",
        *("checks", "if segment_ids.q.dtype != segment_ids.kv.dtype:", "if False:"),
    ),
    "nan_scale_accepted": fault(
        "a scale of nan or inf is not refused", "checks", "    if not finite:", "    if False:"
    ),
    "bool_scale_accepted": fault(
        "True is taken for a scale of 1",
        *("checks", "isinstance(sm_scale, bool) or not isinstance", "not isinstance"),
    ),
    "tuples_as_segment_ids": fault(
        "a plain tuple is not refused as it should be",
        *(
            "checks",
            "if not isinstance(segment_ids, SegmentIds):",
            "if not isinstance(segment_ids, tuple):",
        ),
    ),
    "message_without_its_argument": fault(
        "the refusal of a dtype does not say which array has it",
        *("checks", 'f"{name} has dtype {array.dtype}, but must be'),
        'f"an array has dtype {array.dtype}, but must be',
        source="jax-ml/jax#28974",
    ),
    "major_keys_need_not_divide": fault(
        "a major block of keys that does not divide their number is not refused",
        *("blocks", "if kv_len % block:", "if False:"),
        source="pytorch/xla PR#8671",
    ),
    "minor_need_not_divide": fault(
        "a minor block that does not divide its major one is not refused",
        *("blocks", "if outer % inner:", "if False:"),
        source="jax-ml/jax PR#21366",
    ),
    "query_blocks_of_four": fault(
        "blocks of queries need only be multiples of 4",
        *("blocks", "if block % SUBLANES and block != q_len:", "if block % 4 and block != q_len:"),
    ),
    "key_blocks_of_half_a_tile": fault(
        "blocks of keys need only be multiples of 64",
        *("blocks", "block % LANES and block != kv_len", "block % 64 and block != kv_len"),
    ),
    "block_b_may_exceed": fault(
        "more batch rows than there are may be asked for in a block",
        *("blocks", "if self.block_b > batch:", "if False:"),
    ),
    "query_block_may_exceed": fault(
        "a block of queries may be larger than their number",
        *("blocks", "if block > q_len:", "if False:"),
        source="AI-Hypercomputer/maxdiffusion PR#382",
    ),
    "bools_as_block_sizes": fault(
        "True is taken for a block of 1",
        *(
            "blocks",
            "None if isinstance(value, bool) else operator.index(value)",
            "operator.index(value)",
        ),
    ),
    "floats_as_block_sizes": fault(
        "a block of 128.0 is not refused",
        *("blocks", "else operator.index(value)", "else int(value)"),
    ),
    "blocks_of_zero": fault(
        "a block of 0 is not refused as it should be",
        *("blocks", "if number < 1:", "if number < 0:"),
    ),
    "some_backward_blocks": fault(
        "some backward blocks without the others are not refused where they are given",
        *("blocks", "if missing and len(missing) < len(_BACKWARD):", "if False:"),
    ),
    "backward_blocks_not_needed": fault(
        "a differentiated call without backward blocks is not refused as it should be",
        *("differentiation", "    if missing:\n", "    if False:\n"),
    ),
    "second_derivative_a_type_error": fault(
        "a second derivative is refused by the wrong exception",
        *(
            "differentiation",
            'raise NotImplementedError(\n        "flash',
            'raise TypeError(\n        "flash',
        ),
    ),
}
