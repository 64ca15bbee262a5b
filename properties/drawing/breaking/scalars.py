"""Rules on dtypes of arrays, on the scale and on flags."""

import numpy as np

from properties.drawing.breaking.arguments import Call
from properties.drawing.breaking.breaker import breaks, each
from properties.drawing.breaking.odd_values import odd_dtype, odd_value

_ILLEGAL_FLOATS = ("float16", "float64", "float8_e4m3fn")
_NO_FLOATS = ("int32", "int8", "uint8", "bool", "complex64")


@breaks("qkv_dtype", each(dtype=_ILLEGAL_FLOATS + _NO_FLOATS))
def _qkv_dtype(made: Call, dtype: str) -> None:
    for name in ("q", "k", "v"):
        made.arguments[name] = np.zeros(made.arguments[name].shape, odd_dtype(dtype))


@breaks("qkv_mixed", each(others=(["q"], ["k"], ["v"])))
def _qkv_mixed(made: Call, others: list[str]) -> None:
    other = odd_dtype("bfloat16" if made.case.dtype == "float32" else "float32")
    for name in others:
        made.arguments[name] = made.arguments[name].astype(other)


@breaks("bias_dtype", each(dtype=_NO_FLOATS + _ILLEGAL_FLOATS))
def _bias_dtype(made: Call, dtype: str) -> None:
    made.arguments["ab"] = np.zeros(made.bias().shape, odd_dtype(dtype))


_NO_SCALES = (
    *("None", "True", "'1.0'", "1j", "[1.0]", "np.array(1.0)", "np.array([1.0])"),
    *("np.True_", "np.complex64(1)"),
)


@breaks("scale_type", each(value=_NO_SCALES))
@breaks(
    "scale_value",
    each(
        value=(
            *("nan", "inf", "-inf", "1e39", "-1e39", "10**400"),
            *("np.float32(nan)", "np.float64(1e39)"),
        )
    ),
)
def _scale(made: Call, value: str) -> None:
    made.arguments["sm_scale"] = odd_value(value)


_NO_FLAGS = ("'no'", "1", "0", "None", "1.0", "[]", "np.array(True)", "np.int8(1)")


@breaks("flag_type", each(argument=("causal", "debug"), value=_NO_FLAGS))
def _flag_type(made: Call, argument: str, value: str) -> None:
    made.arguments[argument] = odd_value(value)
