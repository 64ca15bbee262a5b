"""Faults of what a call gives and keeps: dtypes of results, saved statistics, transformations."""

import jax

from properties.faults.fault import Fault, fault

_SAVED_M = "ref[b, 0:1, queries] = m"
_SAVED_L = "ref[b, 1:2, queries] = l"
_NARROW = ".astype(jnp.bfloat16).astype(jnp.float32)"
_ROW = "row = Inputs(*(None if ref is None else ref.at[b] for ref in refs))"

FAULTS: dict[str, Fault] = {
    "output_in_float32": fault(
        "o is float32 whatever the dtype of q",
        *("forward", "(tile.result(inputs, inputs.q.shape, inputs.q.dtype),)"),
        "(tile.result(inputs, inputs.q.shape, jnp.float32),)",
    ),
    "dv_in_float32": fault(
        "dk and dv are float32 whatever the dtype of k and v",
        *("backward", "dtype = inputs.k.dtype if chunks == 1 else jnp.float32"),
        "dtype = jnp.float32",
        source="jax-ml/jax commit 4806083d05",
    ),
    "dab_in_the_dtype_of_queries": fault(
        "dab has the dtype of q and not of ab",
        *("backward", "tile.result(inputs, inputs.ab.shape, inputs.ab.dtype)"),
        "tile.result(inputs, inputs.ab.shape, inputs.q.dtype)",
    ),
    "saved_sum_in_bfloat16": fault(
        "the sum that the backward starts from is rounded to bfloat16",
        *("forward", _SAVED_L, f"{_SAVED_L}{_NARROW}"),
    ),
    "saved_maximum_in_bfloat16": fault(
        "the maximum that the backward starts from is rounded to bfloat16",
        *("forward", _SAVED_M, f"{_SAVED_M}{_NARROW}"),
    ),
    "saved_for_one_batch_row_of_a_block": fault(
        "of a block of batch rows the statistics of one are saved, the others' are never written",
        *("forward", _SAVED_L, _SAVED_L.replace("[b,", "[0,")),
    ),
    "segments_of_the_first_batch_row_of_a_block": fault(
        "every batch row of a block has the segments of the first",
        *("forward", _ROW),
        f"{_ROW}\n"
        "            if refs.q_ids is not None:\n"
        "                row = row._replace(q_ids=refs.q_ids.at[0], kv_ids=refs.kv_ids.at[0])",
    ),
    "keys_have_the_segments_of_queries": fault(
        "the query half of the segment ids is used for the keys too",
        *("attention", "kv_ids[:, :, None]", "q_ids[:, :, None]"),
        source="vllm-project/vllm-omni#5865",
    ),
    "keys_not_padded": fault(
        "weights of 0 meet what stands beyond the last key, NaN if that is",
        *("attention", "    if missing:\n", "    if False:\n"),
        source="vllm-project/vllm PR#936",
    ),
    "scale_not_in_the_cache_key": fault(
        "a kernel traced for one scale is used again for another",
        *("tile", "    sm_scale: float\n    blocks"),
        "    sm_scale: float = dataclasses.field(compare=False)\n    blocks",
    ),
    "mapped_axis_in_another_order": fault(
        "under vmap results are unfolded in another order than arguments were folded",
        *("differentiation", "x.reshape(axis_size, -1, *x.shape[1:])"),
        "x.reshape(-1, axis_size, *x.shape[1:]).swapaxes(0, 1)",
        source="jax-ml/jax commit 67559cc92c",
    ),
    "mesh_axes_not_declared": fault(
        "results are not said to vary over the axes of a mesh, and shard_map refuses the call",
        *("tile", "jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying)"),
        "jax.ShapeDtypeStruct(shape, dtype)",
        source="erfanzar/EasyDeL#149",
    ),
    "index_maps_of_64_bits": fault(
        "under jax_enable_x64 index maps hold 64-bit integers, which a TPU does not have",
        *("tile", "ZERO = np.int32(0)", "ZERO = 0"),
        source="jax-ml/jax#23988",
    ),
    "matmul_precision_is_the_lowest": fault(
        "products of float32 ignore jax.default_matmul_precision",
        *("tile", "    if a.dtype == jnp.bfloat16:", "    if a.dtype != jnp.int8:"),
    ),
}

# From jax 0.12 on the compiler knows every precision, and this is no fault.
if jax.__version_info__ < (0, 12):
    FAULTS["precision_that_does_not_lower"] = fault(
        "matmul precisions between the lowest and the highest are passed on to the compiler",
        *("tile", 'in ("high", "tensorfloat32")', "in ()"),
    )
