"""Values that JSON cannot hold, by the Python expression that names them in a case's parameters."""

import types
from typing import Any

import ml_dtypes
import numpy as np

from properties.cases.case import CaseError

ODD_VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "0": 0,
    "1": 1,
    "-1": -1,
    "1.0": 1.0,
    "8.0": 8.0,
    "1j": 1j,
    "'no'": "no",
    "'8'": "8",
    "'1.0'": "1.0",
    "[]": [],
    "[1.0]": [1.0],
    "[[[[0.0]]]]": [[[[0.0]]]],
    "{}": {},
    "(128, 128, 128, 1)": (128, 128, 128, 1),
    "object": object,
    "no shape": types.SimpleNamespace(dtype=np.dtype("float32")),
    "no dtype": types.SimpleNamespace(shape=(1, 1, 8, 8)),
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "1e39": 1e39,
    "-1e39": -1e39,
    "10**400": 10**400,
    "np.True_": np.True_,
    "np.int8(1)": np.int8(1),
    "np.int64(0)": np.int64(0),
    "np.float32(8)": np.float32(8),
    "np.float32(nan)": np.float32("nan"),
    "np.float64(1e39)": np.float64(1e39),
    "np.complex64(1)": np.complex64(1),
    "np.array(True)": np.array(True),
    "np.array(1.0)": np.array(1.0),
    "np.array([1.0])": np.array([1.0]),
    "np.array([8])": np.array([8]),
}


def odd_value(expression: str) -> Any:
    """The value that an expression names; raises CaseError for one that is not listed here."""
    if expression not in ODD_VALUES:
        raise CaseError(
            f"parameters: {expression!r} names no value; known: {', '.join(ODD_VALUES)}"
        )
    return ODD_VALUES[expression]


def odd_dtype(name: str) -> np.dtype:
    """The dtype of that name, ml_dtypes' included; raises CaseError for an unknown one."""
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise CaseError(f"parameters: {name!r} names no dtype") from None
