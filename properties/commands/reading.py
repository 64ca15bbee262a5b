"""What replay and shrink are given: a report, a bare case or tensors, refused before anything runs.

All that comes from outside is held to a size, to names without folders and to one schema, in a
line that says what is wrong. Nothing of it is imported, evaluated or unpickled.
"""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from properties.cases import limits, records, tensors
from properties.cases.case import SCHEMA, Case, CaseError
from properties.commands import parameters, replay
from properties.shrinking.real_values import segments_of

MOST_TEXT = 32 * 2**20
"""Characters of JSON: segments of a large case are some megabytes."""

_CALL = ("causal", "sm_scale", "block_sizes", "dtype")


def read(source: str) -> replay.Request:
    """The request in a file, `.json` or `.npz`, or for "-" in JSON on standard input.

    Raises ValueError, of one line, for anything else, and for a case that is too large to run.
    """
    path = pathlib.Path(source)
    if path.suffix == ".npz":
        request = replay.Request(_of_tensors(path))
    elif source == "-":
        request = replay.parse(_limited(sys.stdin.read(MOST_TEXT + 1)), pathlib.Path())
    else:
        try:
            with path.open(encoding="utf-8") as file:
                text = _limited(file.read(MOST_TEXT + 1))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        request = replay.parse(text, path.parent)
    return checked(request)


def checked(request: replay.Request) -> replay.Request:
    """The request, if it may be run. Raises CaseError for a case that is too large, or for what no
    call or property takes."""
    # Whether a call compiles is asked of shapes alone.
    if request.property != "compilation":
        limits.check(request.case)
        if request.case.tensors is not None:
            _check_numbers(request.case)
    parameters.check(request.case)
    return request


def _limited(text: str) -> str:
    if len(text) > MOST_TEXT:
        raise CaseError(f"longer than {MOST_TEXT // 2**20} million characters, which no case is")
    return text


def _of_tensors(path: pathlib.Path) -> Case:
    """The case of an `.npz` file: its call, with the shapes and dtypes of its arrays."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    arrays = tensors.read_raw(path)
    call = _call(arrays.pop(tensors.CALL, None))
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(shapes["q"]) != 4 or len(shapes["k"]) != 4:
        raise CaseError(
            f"q and k have shapes {shapes['q']}, {shapes['k']}; expected [batch, heads, length, "
            "head_dim]"
        )
    batch, heads, q_len, head_dim = shapes["q"]
    ids = [arrays.get(name) for name in ("q_segment_ids", "kv_segment_ids")]
    if any(each is not None and (each.ndim != 2 or not each.size) for each in ids):
        raise CaseError("segment ids have shape [batch, length]")
    segments = segments_of(*ids)
    record = {
        "schema": SCHEMA,
        "batch": batch,
        "heads": heads,
        "q_len": q_len,
        "kv_len": shapes["k"][2],
        "head_dim": head_dim,
        "dtype": call.get("dtype", _dtype_of(arrays["q"])),
        "causal": call.get("causal", False),
        "sm_scale": call.get("sm_scale", 1.0),
        "bias": {"dtype": _dtype_of(arrays["ab"]), "family": "normal"} if "ab" in arrays else None,
        "segments": segments and vars(segments),
        "block_sizes": call.get("block_sizes"),
        "values": "normal",
        "seed": 0,
        "tensors": path.name,
    }
    return Case.from_json(record, path.parent)


def _call(stored: np.ndarray | None) -> Mapping[str, Any]:
    if stored is None:
        return {}
    if stored.shape != () or stored.dtype.kind not in "US":
        raise CaseError("call: expected a string of JSON")
    text = stored.item()
    record = records.parsed(text.decode("utf-8") if isinstance(text, bytes) else text)
    return records.record(record, "call", required=(), optional=_CALL)


def _dtype_of(array: np.ndarray) -> str:
    return "bfloat16" if array.dtype == np.uint16 else array.dtype.name


def _check_numbers(case: Case) -> None:
    """Raises CaseError where an array does not fit the case, or holds what no call may."""
    arrays = case.arrays()
    for name in ("q", "k", "v", "ab", "do"):
        array = getattr(arrays, name)
        if array is None:
            continue
        numbers = array.astype(np.float32)
        wrong = np.isnan(numbers) | (np.isposinf(numbers) if name == "ab" else np.isinf(numbers))
        if wrong.any():
            index = [int(i) for i in np.argwhere(wrong)[0]]
            raise CaseError(
                f"tensors: {name}{index} is {numbers[tuple(index)]}; nothing is promised for it"
            )
