"""Faults in arithmetic: scale and bias, the running softmax, precision of sums and casts."""

from properties.faults.fault import Fault, fault
from properties.faults.planting import Edit

_PRODUCT = "s = matmul(refs.k[keys, :], q, (1, 1))"
_BIAS = "        s += ab\n"
_SCALING = "    if not call.scales_exponent:\n        s *= np.float32(call.sm_scale)\n"
_FOLDS = "return _SMALLEST_NORMAL <= self.sm_scale <= 1.0"
_RATE = "math.log2(math.e) * (self.sm_scale if self.scales_exponent else 1.0)"
_MAXIMUM = "m = lax.max(over_keys(lax.reduce_max, s), _LOWEST if before is None else before.m)"
_WEIGHTS = "p = lax.exp2((s - m) * rate)"
_FADING = "lax.exp2((before.m - m) * rate)"
_L = "before.l * fading + l"
_ACC = "before.acc * fading + acc"
_SHARE = "1.0 / tile.select(l == 0.0, 1.0, l)"
_STORED = ".astype(o_ref.dtype)"


def _rounded(module: str, says: str, old: str, of: str) -> Fault:
    """`of`, in `old`, goes through bfloat16."""
    return fault(
        says, module, old, old.replace(of, f"({of}).astype(jnp.bfloat16).astype(jnp.float32)")
    )


FAULTS: dict[str, Fault] = {
    "scale_that_vanishes_waits_for_exponent": fault(
        "a scale that float32 takes for 0 is multiplied with the -inf of hidden logits",
        *("tile", _FOLDS, "return 0.0 < self.sm_scale <= 1.0"),
    ),
    "bias_after_scale": Fault(
        "the bias is added to logits that are scaled already",
        (
            Edit("tile", _PRODUCT, f"{_PRODUCT} * np.float32(call.sm_scale)"),
            Edit("tile", _SCALING, ""),
            Edit("tile", _FOLDS, "return False"),
        ),
        source="AI-Hypercomputer/accelerator-agents PR#101",
    ),
    "bias_ignored": fault("the bias only hides", "tile", _BIAS, ""),
    "bias_in_bfloat16": fault(
        "a float32 bias is rounded to bfloat16",
        *("tile", "refs.ab[queries, keys].astype(jnp.float32)"),
        "refs.ab[queries, keys].astype(jnp.bfloat16).astype(jnp.float32)",
    ),
    "scale_ignored": fault(
        "the exponent leaves out the scale",
        *("tile", _RATE, "math.log2(math.e)"),
        source="google/torchax#39",
    ),
    "scale_above_one_ignored": fault(
        "logits are not scaled where the exponent is not", "tile", _SCALING, ""
    ),
    "scale_zero_is_no_scale": fault(
        "a scale of 0 is taken for none given",
        *("tile", "if not call.scales_exponent:", "if call.sm_scale and not call.scales_exponent:"),
    ),
    "negative_scale_in_the_exponent": fault(
        "a scale below 0 waits for the exponent: weights are relative to the smallest logit",
        *("tile", _FOLDS, "return self.sm_scale <= 1.0 and self.sm_scale != 0.0"),
    ),
    "large_scale_in_the_exponent": fault(
        "a scale above 1 waits for the exponent: a bias that it takes to -inf hides nothing",
        *("tile", _FOLDS, "return _SMALLEST_NORMAL <= self.sm_scale"),
    ),
    "scale_without_sign": fault(
        "the sign of the scale is lost",
        *("attention", "sm_scale=float(sm_scale),", "sm_scale=abs(float(sm_scale)),"),
    ),
    "scale_in_bfloat16": fault(
        "the scale of the logits is rounded to bfloat16",
        *("tile", "s *= np.float32(call.sm_scale)", "s *= np.float32(jnp.bfloat16(call.sm_scale))"),
    ),
    "rate_in_bfloat16": fault(
        "the scale and log2(e) make a constant that is rounded to bfloat16",
        *("tile", _RATE, f"jnp.bfloat16({_RATE})"),
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
                _PRODUCT.replace(" q,", " (q * np.float32(call.sm_scale)).astype(q.dtype),"),
            ),
            Edit("tile", _BIAS, "        s += ab * np.float32(call.sm_scale)\n"),
            Edit("tile", _SCALING, ""),
            Edit("tile", _FOLDS, "return False"),
        ),
    ),
    "logits_in_bfloat16": _rounded(
        *("tile", "logits are rounded to bfloat16", _PRODUCT),
        "matmul(refs.k[keys, :], q, (1, 1))",
    ),
    "queries_in_bfloat16": fault(
        "float32 operands of the logits are rounded to bfloat16, as a TPU does if it may",
        *("tile", _PRODUCT),
        _PRODUCT.replace(" q,", " q.astype(jnp.bfloat16).astype(q.dtype),"),
    ),
    "log2e_of_five_digits": fault(
        "exp is exp2 of a product with log2(e) cut to five digits",
        *("tile", _RATE, _RATE.replace("math.log2(math.e)", "1.4427")),
    ),
    "sum_not_rescaled": fault(
        "the sum of weights is not rescaled when the maximum grows",
        *("forward", _L, _L.replace(" * fading", "")),
    ),
    "output_not_rescaled": fault(
        "the gathered values are not rescaled when the maximum grows",
        *("forward", _ACC, _ACC.replace(" * fading", "")),
    ),
    "rescaled_the_wrong_way": fault(
        "what was gathered is multiplied by exp(m - m_before)",
        *("forward", _FADING, _FADING.replace("before.m - m", "m - before.m")),
    ),
    "maximum_not_kept": fault(
        "the maximum that is kept is that of the first keys",
        *("forward", f"return Running(m, {_L}", f"return Running(before.m, {_L}"),
    ),
    "maximum_of_the_last_block": fault(
        "the running maximum is that of the last tile alone",
        *("forward", _MAXIMUM, "m = lax.max(over_keys(lax.reduce_max, s), _LOWEST)"),
    ),
    "maximum_is_zero": fault(
        "nothing is subtracted before exp, which overflows",
        *("forward", _MAXIMUM, f"{_MAXIMUM} * 0.0"),
        source="pytorch/pytorch#121558",
    ),
    "maximum_starts_at_zero": fault(
        "the running maximum starts at 0: all weights of logits far below 0 underflow",
        *("forward", "_LOWEST = np.finfo(np.float32).min", "_LOWEST = np.float32(0.0)"),
    ),
    "weights_clamped_from_below": fault(
        "weights are at least 2 to the -115, as if against underflow, those of hidden keys too",
        *("forward", _WEIGHTS, "p = lax.exp2(lax.max((s - m) * rate, np.float32(-115.0)))"),
    ),
    "exp_in_bfloat16": fault(
        "exp is taken of bfloat16, as newer TPUs can",
        *("forward", _WEIGHTS),
        "p = lax.exp2(((s - m) * rate).astype(jnp.bfloat16)).astype(jnp.float32)",
    ),
    "sum_of_the_last_block": fault(
        "the sum of weights is that of the last tile alone", "forward", _L, "l"
    ),
    "sum_of_rounded_weights": fault(
        "the sum is of weights that were rounded for the product, unlike what is declared",
        *("forward", "over_keys(lax.reduce_sum, p)"),
        "over_keys(lax.reduce_sum, p.astype(v.dtype).astype(jnp.float32))",
    ),
    "output_gathered_in_bfloat16": _rounded(
        *("forward", "values are gathered in bfloat16", _ACC, _ACC)
    ),
    "sum_gathered_in_bfloat16": _rounded(*("forward", "weights are summed in bfloat16", _L, _L)),
    "rescale_in_bfloat16": _rounded(
        *("forward", "the rescaling factor is rounded to bfloat16", _FADING, _FADING)
    ),
    "weights_in_bfloat16": fault(
        "weights are rounded to bfloat16 before they meet float32 values",
        *("forward", "p.astype(v.dtype)", "p.astype(jnp.bfloat16).astype(v.dtype)"),
    ),
    "output_through_bfloat16": fault(
        "a float32 output is rounded to bfloat16",
        *("forward", _STORED, f".astype(jnp.bfloat16){_STORED}"),
    ),
    "output_not_divided": fault(
        "the output is not divided by the sum of weights",
        *("forward", "tile.transposed(acc * share)", "tile.transposed(acc)"),
    ),
    "reciprocal_in_bfloat16": _rounded(
        *("forward", "the output is multiplied by a reciprocal of 8 bits", _SHARE, _SHARE)
    ),
}
