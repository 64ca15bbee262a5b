"""Faults of the backward pass: each gradient, what it is gathered from, and its precision."""

from properties.faults.fault import Fault, fault

_DV = "dv_acc[keys, :] += matmul(p.astype(do.dtype), do, (0, 0))"
_DK = "dk_acc[keys, :] += matmul(ds.astype(q.dtype), q, (0, 0))"
_DQ = "dq_acc[...] += matmul(ds.astype(refs.k.dtype), refs.k[keys, :], (1, 0))"
_DS = "ds = (dp - saved.di[queries, :]) * p"
_DI = "di = jnp.sum(o.astype(jnp.float32) * do.astype(jnp.float32), axis=-1, keepdims=True)"
_NARROW = ".astype(jnp.bfloat16).astype(jnp.float32)"


def _gathered_in_bfloat16(name: str, statement: str) -> Fault:
    place, _, product = statement.partition(" += ")
    narrow = f"{place} = ({place} + {product}){_NARROW}"
    return fault(f"{name} is gathered in bfloat16", "backward", statement, narrow)


FAULTS: dict[str, Fault] = {
    "weights_not_normalised": fault(
        "the backward does not divide by the sum of weights",
        *("backward", "lax.exp(s - saved.m[queries, :]) / saved.l[queries, :]"),
        "lax.exp(s - saved.m[queries, :])",
    ),
    "di_missing": fault("di is not subtracted", "backward", _DS, "ds = dp * p"),
    "di_added": fault("di is added", "backward", _DS, _DS.replace("-", "+")),
    "di_from_bfloat16_products": fault(
        "the products of di are rounded to the dtype of o",
        *(
            "differentiation",
            _DI,
            "di = jnp.sum((o * do).astype(jnp.float32), axis=-1, keepdims=True)",
        ),
    ),
    "di_in_bfloat16": fault("di is rounded to bfloat16", "differentiation", _DI, f"{_DI}{_NARROW}"),
    "scale_missing_in_gradients": fault(
        "ds is not scaled", "backward", "ds *= np.float32(call.sm_scale)", "pass"
    ),
    "scale_missing_in_dk": fault(
        "dk is not scaled",
        *(
            "backward",
            _DK,
            _DK.replace("ds.astype", "(ds / np.float32(call.sm_scale or 1.0)).astype"),
        ),
    ),
    "scale_missing_in_dq": fault(
        "dq is not scaled",
        *(
            "backward",
            _DQ,
            _DQ.replace("ds.astype", "(ds / np.float32(call.sm_scale or 1.0)).astype"),
        ),
    ),
    "scale_missing_in_dab": fault(
        "dab is not scaled, though the bias is",
        *("backward", "= ds.astype(dab_ref.dtype)"),
        "= (ds / np.float32(call.sm_scale or 1.0)).astype(dab_ref.dtype)",
    ),
    "scale_twice_in_dab": fault(
        "dab is scaled twice",
        *("backward", "= ds.astype(dab_ref.dtype)"),
        "= (ds * np.float32(call.sm_scale)).astype(dab_ref.dtype)",
    ),
    "bias_missing_in_dq": fault(
        "dq is taken of attention without the bias",
        *("backward", "s = tile.logits(call, refs, ALL, keys,"),
        "s = tile.logits(call, refs._replace(ab=None), ALL, keys,",
    ),
    "bias_missing_in_dkv": fault(
        "dk and dv are taken of attention without the bias",
        *("backward", "s = tile.logits(call, refs, queries, keys,"),
        "s = tile.logits(call, refs._replace(ab=None), queries, keys,",
    ),
    "dv_of_the_last_queries": fault(
        "dv is that of the last block of queries alone",
        *("backward", _DV, _DV.replace("+=", "=")),
    ),
    "dk_of_the_last_queries": fault(
        "dk is that of the last block of queries alone",
        *("backward", _DK, _DK.replace("+=", "=")),
    ),
    "dq_of_the_last_keys": fault(
        "dq is that of the last block of keys alone", "backward", _DQ, _DQ.replace("+=", "=")
    ),
    "dk_and_dv_swapped": fault(
        "dk and dv change places",
        *(
            "differentiation",
            "Inputs(dq, dk, dv, dab, None, None)",
            "Inputs(dq, dv, dk, dab, None, None)",
        ),
    ),
    "dab_is_zero": fault(
        "the bias has no gradient",
        *("differentiation", "Inputs(dq, dk, dv, dab, None, None)"),
        "Inputs(dq, dk, dv, None if dab is None else jnp.zeros_like(dab), None, None)",
        source="jax-ml/jax#27184",
    ),
    "dab_in_bfloat16": fault(
        "dab of a float32 bias is rounded to bfloat16",
        *(
            "backward",
            "= ds.astype(dab_ref.dtype)",
            "= ds.astype(jnp.bfloat16).astype(dab_ref.dtype)",
        ),
    ),
    "dab_of_rounded_weights": fault(
        "dab is made from weights that were rounded for dv",
        *(
            "backward",
            _DS,
            "ds = (dp - saved.di[queries, :]) * p.astype(do.dtype).astype(jnp.float32)",
        ),
    ),
    "dv_of_bfloat16_weights": fault(
        "weights are rounded to bfloat16 before they meet float32 cotangents",
        *(
            "backward",
            _DV,
            _DV.replace("p.astype(do.dtype)", "p.astype(jnp.bfloat16).astype(do.dtype)"),
        ),
    ),
    "dk_of_bfloat16_ds": fault(
        "ds is rounded to bfloat16 before it meets float32 queries",
        *(
            "backward",
            _DK,
            _DK.replace("ds.astype(q.dtype)", "ds.astype(jnp.bfloat16).astype(q.dtype)"),
        ),
    ),
    "dq_of_bfloat16_ds": fault(
        "ds is rounded to bfloat16 before it meets float32 keys",
        *("backward", _DQ, _DQ.replace("ds.astype(", "ds.astype(jnp.bfloat16).astype(")),
    ),
    "dp_in_bfloat16": fault(
        "dp is rounded to bfloat16",
        *("backward", "dp = matmul(do, v, (1, 1))", f"dp = matmul(do, v, (1, 1)){_NARROW}"),
    ),
    "dv_gathered_in_bfloat16": _gathered_in_bfloat16("dv", _DV),
    "dk_gathered_in_bfloat16": _gathered_in_bfloat16("dk", _DK),
    "dq_gathered_in_bfloat16": _gathered_in_bfloat16("dq", _DQ),
}
