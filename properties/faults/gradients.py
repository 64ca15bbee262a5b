"""Faults of the backward pass: each gradient, what it is gathered from, and its precision."""

from properties.faults.fault import Fault, fault
from properties.faults.planting import Edit

_LOGITS = "s = tile.logits(call, grid, refs, q, part, j)"
_DV = "dv_acc[keys, :] += matmul(p.astype(do.dtype), do, (1, 0))"
_DK = "dk_acc[keys, :] += matmul(ds, q, (1, 0))"
_DQ = "dq_acc[i, :, queries] += tile.over_all_keys(refs, refs.k[keys, :], ds)"
_DS = "ds = p * (dp - di_ref[i, :, queries])"
_ROUNDED_DS = "ds = ds.astype(q.dtype)"
_DI = "tile.over_keys(lax.reduce_sum, tile.transposed(product))"
_PRODUCT = "product = o.astype(jnp.float32) * do.astype(jnp.float32)"
_DAB = "tile.transposed(_scaled(call, ds)).astype(ref.dtype)"
_RESULT = "Inputs(dq, dk, dv, dab[0] if dab else None, None, None)"
_NARROW = ".astype(jnp.bfloat16).astype(jnp.float32)"


def _gathered_in_bfloat16(name: str, statement: str) -> Fault:
    place, _, product = statement.partition(" += ")
    narrow = f"{place} = ({place} + {product}){_NARROW}"
    return fault(f"{name} is gathered in bfloat16", "backward", statement, narrow)


FAULTS: dict[str, Fault] = {
    "weights_not_normalised": fault(
        "the backward does not divide by the sum of weights",
        *("backward", "tile.select(l == 0.0, 0.0, 1.0 / l)", "tile.select(l == 0.0, 0.0, 1.0)"),
    ),
    "di_missing": fault("di is not subtracted", "backward", _DS, "ds = p * dp"),
    "di_added": fault("di is added", "backward", _DS, _DS.replace("-", "+")),
    "di_from_bfloat16_products": fault(
        "the products of di are rounded to the dtype of o",
        *("backward", _PRODUCT, "product = (o * do).astype(jnp.float32)"),
    ),
    "di_in_bfloat16": fault("di is rounded to bfloat16", "backward", _DI, f"{_DI}{_NARROW}"),
    "di_of_the_last_queries": Fault(
        "di is kept for one block of queries, and is that of another",
        (
            Edit("backward", f"di_ref[i] = {_DI}", f"di_ref[0] = {_DI}"),
            Edit("backward", _DS, _DS.replace("di_ref[i,", "di_ref[0,")),
        ),
    ),
    "scale_missing_in_gradients": fault(
        "no gradient is scaled",
        *("backward", "return x if call.sm_scale == 1.0 else x * np.float32(call.sm_scale)"),
        "return x",
    ),
    "scale_of_gradients_in_bfloat16": fault(
        "gradients are multiplied by a scale that is rounded to bfloat16",
        *(
            "backward",
            "x * np.float32(call.sm_scale)",
            "x * np.float32(jnp.bfloat16(call.sm_scale))",
        ),
    ),
    "scale_missing_in_dk": fault(
        "dk is not scaled",
        *("backward", "_scaled(call, dk_acc[...])", "dk_acc[...]"),
    ),
    "scale_missing_in_dq": fault(
        "dq is not scaled",
        *("backward", "_scaled(call, tile.transposed(dq_acc[i]))", "tile.transposed(dq_acc[i])"),
    ),
    "scale_missing_in_dab": fault(
        "dab is not scaled, though the bias is",
        *("backward", _DAB, _DAB.replace("_scaled(call, ds)", "ds")),
    ),
    "scale_twice_in_dab": fault(
        "dab is scaled twice",
        *("backward", _DAB, _DAB.replace("_scaled(call, ds)", "_scaled(call, _scaled(call, ds))")),
    ),
    "bias_missing_in_gradients": fault(
        "gradients are taken of attention without the bias",
        *("backward", _LOGITS, _LOGITS.replace("refs", "refs._replace(ab=None)")),
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
        *("backward", _RESULT, _RESULT.replace("dk, dv", "dv, dk")),
    ),
    "dab_is_zero": fault(
        "the bias has no gradient",
        *("backward", _RESULT, _RESULT.replace("dab[0] if", "jnp.zeros_like(dab[0]) if")),
        source="jax-ml/jax#27184",
    ),
    "dab_in_bfloat16": fault(
        "dab of a float32 bias is rounded to bfloat16",
        *("backward", _DAB, _DAB.replace(".astype(", ".astype(jnp.bfloat16).astype(")),
    ),
    "dab_of_rounded_weights": fault(
        "dab is made from weights that were rounded for dv",
        *(
            "backward",
            _DS,
            _DS.replace("p *", "p.astype(do.dtype).astype(jnp.float32) *"),
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
        *("backward", _DK, _DK.replace("ds,", "ds.astype(jnp.bfloat16).astype(q.dtype),")),
    ),
    "dq_of_bfloat16_ds": fault(
        "ds is rounded to bfloat16 before it meets float32 keys",
        *("backward", _DQ, _DQ.replace("ds)", "ds.astype(jnp.bfloat16).astype(ds.dtype))")),
    ),
    "dp_in_bfloat16": fault(
        "dp is rounded to bfloat16",
        *("backward", "matmul(refs.v[part.keys, :], do, (1, 1))"),
        f"matmul(refs.v[part.keys, :], do, (1, 1)){_NARROW}",
    ),
    "dv_gathered_in_bfloat16": _gathered_in_bfloat16("dv", _DV),
    "dk_gathered_in_bfloat16": _gathered_in_bfloat16("dk", _DK),
    "dq_gathered_in_bfloat16": _gathered_in_bfloat16("dq", _DQ),
}
