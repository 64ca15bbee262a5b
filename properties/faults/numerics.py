"""Faults in arithmetic: scale and bias, the running softmax, precision of sums and casts."""

from properties.faults.fault import Fault, fault
from properties.faults.planting import Edit

_PRODUCT = "s = matmul(refs.q[queries, :], refs.k[keys, :], (1, 1))"
_SCALING = "    if call.sm_scale != 1.0:\n        s *= np.float32(call.sm_scale)\n"
_ACC = "acc_ref[b] = rescale * acc_ref[b] + matmul(p.astype(row.v.dtype), row.v[keys, :], (1, 0))"
_L = "l_ref[b] = rescale * l_ref[b] + tile.row_sum(p)"
_WEIGHTS = "p = lax.exp(s - _finite(m))"
_STORED = ".astype(o_ref.dtype)"


def _rounded(module: str, says: str, old: str, of: str) -> Fault:
    """`of`, in `old`, goes through bfloat16."""
    return fault(
        says, module, old, old.replace(of, f"({of}).astype(jnp.bfloat16).astype(jnp.float32)")
    )


FAULTS: dict[str, Fault] = {
    "bias_after_scale": Fault(
        "the bias is added to logits that are scaled already",
        (
            Edit("tile", "        s += ab\n", ""),
            Edit("tile", _SCALING, f"{_SCALING}    if refs.ab is not None:\n        s += ab\n"),
        ),
        source="AI-Hypercomputer/accelerator-agents PR#101",
    ),
    "bias_ignored": fault("the bias only hides", "tile", "        s += ab\n", ""),
    "bias_in_bfloat16": fault(
        "a float32 bias is rounded to bfloat16",
        *("tile", "ab = refs.ab[queries, keys].astype(jnp.float32)"),
        "ab = refs.ab[queries, keys].astype(jnp.bfloat16).astype(jnp.float32)",
    ),
    "scale_ignored": fault(
        "logits are not scaled", "tile", _SCALING, "", source="google/torchax#39"
    ),
    "scale_zero_is_no_scale": fault(
        "a scale of 0 is taken for none given",
        *("tile", "if call.sm_scale != 1.0:", "if call.sm_scale not in (0.0, 1.0):"),
    ),
    "scale_without_sign": fault(
        "the sign of the scale is lost",
        *("attention", "sm_scale=float(sm_scale),", "sm_scale=abs(float(sm_scale)),"),
    ),
    "scale_in_bfloat16": fault(
        "the scale is rounded to bfloat16",
        *("tile", "s *= np.float32(call.sm_scale)", "s *= np.float32(jnp.bfloat16(call.sm_scale))"),
    ),
    "scale_in_float16": fault(
        "the scale goes through float16, which flushes small ones to 0",
        *("attention", "sm_scale=float(sm_scale),", "sm_scale=float(jnp.float16(sm_scale)),"),
    ),
    "queries_scaled_in_their_dtype": Fault(
        "the scale is folded into the queries, which rounds them in bfloat16",
        (
            Edit(
                "tile",
                _PRODUCT,
                _PRODUCT.replace(
                    "refs.q[queries, :]",
                    "(refs.q[queries, :] * np.float32(call.sm_scale)).astype(refs.q.dtype)",
                ),
            ),
            Edit("tile", "        s += ab\n", "        s += ab * np.float32(call.sm_scale)\n"),
            Edit("tile", _SCALING, ""),
        ),
    ),
    "logits_in_bfloat16": _rounded(
        *("tile", "logits are rounded to bfloat16", _PRODUCT),
        "matmul(refs.q[queries, :], refs.k[keys, :], (1, 1))",
    ),
    "queries_in_bfloat16": fault(
        "float32 operands of the logits are rounded to bfloat16, as a TPU does if it may",
        *("tile", _PRODUCT),
        _PRODUCT.replace(
            "refs.q[queries, :]", "refs.q[queries, :].astype(jnp.bfloat16).astype(refs.q.dtype)"
        ),
    ),
    "log2e_of_five_digits": fault(
        "exp is exp2 of a product with log2(e) cut to five digits",
        *("forward", "        p = lax.exp(s - _finite(m))\n        rescale"),
        "        p = lax.exp2((s - _finite(m)) * 1.4427)\n        rescale",
    ),
    "sum_not_rescaled": fault(
        "the sum of weights is not rescaled when the maximum grows",
        *("forward", _L, _L.replace("rescale * ", "")),
    ),
    "output_not_rescaled": fault(
        "the gathered values are not rescaled when the maximum grows",
        *("forward", _ACC, _ACC.replace("rescale * ", "")),
    ),
    "rescaled_the_wrong_way": fault(
        "what was gathered is multiplied by exp(m - m_before)",
        *("forward", "lax.exp(m_before - _finite(m))", "lax.exp(_finite(m) - m_before)"),
    ),
    "maximum_not_kept": fault(
        "the running maximum is not written back",
        "forward",
        "        m_ref[b] = m\n        l_ref[b] = r",
        "        l_ref[b] = r",
    ),
    "maximum_of_the_last_block": fault(
        "the running maximum is that of the last block alone",
        *("forward", "m = lax.max(m_before, tile.row_max(s))", "m = tile.row_max(s)"),
    ),
    "maximum_is_zero": fault(
        "nothing is subtracted before exp, which overflows",
        *("forward", "m = tile.row_max(s)\n", "m = tile.row_max(s) * 0.0\n"),
        source="pytorch/pytorch#121558",
    ),
    "maximum_starts_at_zero": fault(
        "the running maximum starts at 0: all weights of logits far below 0 underflow",
        *("forward", "jnp.full(m_ref.shape, HIDDEN, jnp.float32)"),
        "jnp.zeros(m_ref.shape, jnp.float32)",
    ),
    "weights_clamped_from_below": Fault(
        "weights are at least exp(-80), as if against underflow, those of hidden keys too",
        (Edit("forward", _WEIGHTS, "p = lax.exp(lax.max(s - _finite(m), -80.0))", count=2),),
    ),
    "exp_in_bfloat16": Fault(
        "exp is taken of bfloat16, as newer TPUs can",
        (
            Edit(
                "forward",
                _WEIGHTS,
                "p = lax.exp((s - _finite(m)).astype(jnp.bfloat16)).astype(jnp.float32)",
                count=2,
            ),
        ),
    ),
    "sum_of_the_last_block": fault(
        "the sum of weights is that of the last block alone",
        *("forward", _L, "l_ref[b] = tile.row_sum(p)"),
    ),
    "sum_of_rounded_weights": fault(
        "the sum is of weights that were rounded for the product, unlike what is declared",
        *(
            "forward",
            _L,
            _L.replace(
                "tile.row_sum(p)", "tile.row_sum(p.astype(row.v.dtype).astype(jnp.float32))"
            ),
        ),
    ),
    "output_gathered_in_bfloat16": _rounded(
        *("forward", "values are gathered in bfloat16", _ACC, _ACC.partition(" = ")[2])
    ),
    "sum_gathered_in_bfloat16": _rounded(
        *("forward", "weights are summed in bfloat16", _L, _L.partition(" = ")[2])
    ),
    "rescale_in_bfloat16": _rounded(
        *("forward", "the rescaling factor is rounded to bfloat16"),
        *("rescale = lax.exp(m_before - _finite(m))", "lax.exp(m_before - _finite(m))"),
    ),
    "weights_in_bfloat16": fault(
        "weights are rounded to bfloat16 before they meet float32 values",
        *(
            "forward",
            _ACC,
            _ACC.replace("p.astype(row.v.dtype)", "p.astype(jnp.bfloat16).astype(row.v.dtype)"),
        ),
    ),
    "output_through_bfloat16": fault(
        "a float32 output is rounded to bfloat16",
        *("forward", _STORED, f".astype(jnp.bfloat16){_STORED}"),
    ),
    "output_not_divided": fault(
        "the output is not divided by the sum of weights",
        *("forward", "acc / tile.select(l == 0.0, 1.0, l)", "acc"),
    ),
    "reciprocal_in_bfloat16": fault(
        "the output is multiplied by a reciprocal of 8 bits",
        *("forward", "acc / tile.select(l == 0.0, 1.0, l)"),
        "acc * (1.0 / tile.select(l == 0.0, 1.0, l)).astype(jnp.bfloat16).astype(jnp.float32)",
    ),
}
