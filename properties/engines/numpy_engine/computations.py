"""Arithmetic in NumPy: elementwise operations, conversions, reductions, matrix products."""

from typing import Any

import numpy as np

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine import arithmetic
from properties.engines.numpy_engine.rules import Names, Operand, Rule, register, rounded, widened

RULES: dict[str, Rule] = {}


def _elementwise(template: str) -> Rule:
    """Narrow floats are computed in float32 and rounded, each operation by itself."""

    def rule(names: Names, params: dict, out: Any, *operands: Operand) -> str:
        if params.get("out_dtype") is not None:
            raise Unsupported("a product whose dtype is not its operands'")
        source = template.format(*map(widened, operands))
        return rounded(names, source, out.dtype) if arithmetic.is_narrow(out.dtype) else source

    return rule


_ELEMENTWISE = {
    "add": "{} + {}",
    "add_any": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "neg": "-{}",
    "max": "np.maximum({}, {})",
    "min": "np.minimum({}, {})",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "and": "{} & {}",
    "or": "{} | {}",
    "xor": "{} ^ {}",
    "not": "~{}",
    "shift_left": "{} << {}",
    "shift_right_arithmetic": "{} >> {}",
    "abs": "np.abs({})",
    "sign": "np.sign({})",
    "floor": "np.floor({})",
    "ceil": "np.ceil({})",
    "square": "np.square({})",
    "sqrt": "np.sqrt({})",
    "rsqrt": "1 / np.sqrt({})",
    "cbrt": "np.cbrt({})",
    "exp": "np.exp({})",
    "exp2": "np.exp2({})",
    "expm1": "np.expm1({})",
    "log": "np.log({})",
    "log1p": "np.log1p({})",
    "logistic": "1 / (1 + np.exp(-{}))",
    "sin": "np.sin({})",
    "cos": "np.cos({})",
    "tan": "np.tan({})",
    "tanh": "np.tanh({})",
    "sinh": "np.sinh({})",
    "cosh": "np.cosh({})",
    "asin": "np.arcsin({})",
    "acos": "np.arccos({})",
    "atan": "np.arctan({})",
    "atan2": "np.arctan2({}, {})",
    "is_finite": "np.isfinite({})",
    "nextafter": "np.nextafter({}, {})",
    "reciprocal": "1 / {}",
}
RULES.update({name: _elementwise(template) for name, template in _ELEMENTWISE.items()})


@register(RULES, "copy", "copy_p", "stop_gradient", "optimization_barrier", "multiple_of", "touch")
@register(RULES, "sharding_constraint", "pvary", "mesh_cast")
def _identity(names: Names, params: dict, out: Any, *operands: Operand) -> str:
    return operands[0].code if len(operands) == 1 else f"({', '.join(map(str, operands))},)"


@register(RULES, "div")
def _div(names: Names, params: dict, out: Any, x: Operand, y: Operand) -> str:
    if out.dtype.kind in "iu":
        return f"{names.name(arithmetic.divide_integers)}({x}, {y})"
    return _elementwise("{} / {}")(names, params, out, x, y)


@register(RULES, "rem")
def _rem(names: Names, params: dict, out: Any, x: Operand, y: Operand) -> str:
    if out.dtype.kind in "iu":
        return f"{names.name(arithmetic.remainder_integers)}({x}, {y})"
    return _elementwise("np.fmod({}, {})")(names, params, out, x, y)


@register(RULES, "pow")
def _pow(names: Names, params: dict, out: Any, x: Operand, y: Operand) -> str:
    if y.dtype != x.dtype:
        return rounded(names, f"np.power({widened(x)}, {widened(y)})", out.dtype)
    return _elementwise("np.power({}, {})")(names, params, out, x, y)


@register(RULES, "integer_pow")
def _integer_pow(names: Names, params: dict, out: Any, x: Operand) -> str:
    template = f"{names.name(arithmetic.power)}({{}}, {params['y']})"
    return _elementwise(template)(names, params, out, x)


@register(RULES, "shift_right_logical")
def _shift_right_logical(names: Names, params: dict, out: Any, x: Operand, y: Operand) -> str:
    unsigned = names.name(np.dtype(f"u{out.dtype.itemsize}"))
    shifted = f"{x}.astype({unsigned}) >> {y}.astype({unsigned})"
    return rounded(names, shifted, out.dtype)


@register(RULES, "round")
def _round(names: Names, params: dict, out: Any, x: Operand) -> str:
    if params["rounding_method"].name == "TO_NEAREST_EVEN":
        return _elementwise("np.rint({})")(names, params, out, x)
    return _elementwise("np.trunc({0} + np.copysign(0.5, {0}))")(names, params, out, x)


@register(RULES, "erf")
def _erf(names: Names, params: dict, out: Any, x: Operand) -> str:
    return f"np.asarray({names.name(arithmetic.erf)}({x}), {names.name(out.dtype)})[()]"


@register(RULES, "clamp")
def _clamp(names: Names, params: dict, out: Any, low: Operand, x: Operand, high: Operand) -> str:
    template = "np.minimum(np.maximum({1}, {0}), {2})"
    return _elementwise(template)(names, params, out, low, x, high)


@register(RULES, "select_n")
def _select_n(names: Names, params: dict, out: Any, which: Operand, *cases: Operand) -> str:
    if which.dtype.kind == "b":
        return f"np.where({which}, {cases[1]}, {cases[0]})[()]"
    return f"np.choose({which}, [{', '.join(map(str, cases))}])[()]"


@register(RULES, "convert_element_type")
def _convert(names: Names, params: dict, out: Any, x: Operand) -> str:
    if x.dtype == out.dtype:
        return x.code
    if arithmetic.is_float(out.dtype) or (x.dtype.kind in "iub" and out.dtype.kind in "iu"):
        return f"{x}.astype({names.name(out.dtype)})"
    return f"{names.name(arithmetic.convert)}({x}, {names.name(out.dtype)})"


@register(RULES, "bitcast_convert_type")
def _bitcast(names: Names, params: dict, out: Any, x: Operand) -> str:
    return f"{names.name(arithmetic.bitcast)}({x}, {names.name(out.dtype)})"


@register(RULES, "reduce_precision")
def _reduce_precision(names: Names, params: dict, out: Any, x: Operand) -> str:
    bits = (params["exponent_bits"], params["mantissa_bits"])
    if bits not in ((8, 7), (5, 10), (8, 23)):
        raise Unsupported(f"reduce_precision to {bits} bits")
    return f"{names.name(arithmetic.reduce_precision)}({x}, *{bits})"


_REDUCTIONS = {
    "reduce_max": "np.max({}, axis={})",
    "reduce_min": "np.min({}, axis={})",
    "reduce_sum": "np.sum({}, axis={}, dtype={})",
    "reduce_prod": "np.prod({}, axis={}, dtype={})",
    "reduce_and": "np.all({}, axis={})",
    "reduce_or": "np.any({}, axis={})",
    "cumsum": "np.cumsum({}, axis={}, dtype={})",
    "cumprod": "np.cumprod({}, axis={}, dtype={})",
    "cummax": "np.maximum.accumulate({}, axis={})",
    "cummin": "np.minimum.accumulate({}, axis={})",
    "cumlogsumexp": "np.logaddexp.accumulate({}, axis={})",
}


def _reduction(template: str) -> Rule:
    """Sums of narrow floats run in float32 and round once, as XLA's do."""

    def rule(names: Names, params: dict, out: Any, x: Operand) -> str:
        axes = tuple(map(int, params["axes"])) if "axes" in params else int(params["axis"])
        narrow = arithmetic.is_narrow(out.dtype)
        dtype = names.name(np.dtype(np.float32) if narrow else out.dtype)
        source = widened(x)
        if params.get("reverse"):
            source = template.format(f"np.flip({source}, {axes})", axes, dtype)
            source = f"np.flip({source}, {axes})"
        else:
            source = template.format(source, axes, dtype)
        return rounded(names, source, out.dtype) if narrow else source

    return rule


RULES.update({name: _reduction(template) for name, template in _REDUCTIONS.items()})


def _arg(function: str) -> Rule:
    def rule(names: Names, params: dict, out: Any, x: Operand) -> str:
        (axis,) = params["axes"]
        return f"{function}({widened(x)}, axis={int(axis)}).astype({names.name(out.dtype)})"

    return rule


RULES.update({"argmax": _arg("np.argmax"), "argmin": _arg("np.argmin")})


@register(RULES, "dot_general")
def _dot_general(names: Names, params: dict, out: Any, x: Operand, y: Operand) -> str:
    numbers = params["dimension_numbers"]
    dot = arithmetic.DotGeneral(x.shape, y.shape, numbers, out.dtype)
    if out.dtype.kind in "iu":
        wide = [f"{operand}.astype({names.name(out.dtype)}, copy=False)" for operand in (x, y)]
    else:
        wide = [widened(x), widened(y)]
    return f"{names.name(dot)}({', '.join(wide)})"


@register(RULES, "bitcast")
def _pallas_bitcast(names: Names, params: dict, out: Any, x: Operand) -> str:
    if x.dtype.itemsize != out.dtype.itemsize:
        raise Unsupported("a bitcast in a kernel that changes the width")
    return f"{names.name(arithmetic.bitcast)}({x}, {names.name(out.dtype)})"
