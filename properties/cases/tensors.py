"""Real tensors in an `.npz` file: the arrays of a call that a user has met, not a family's.

The file holds q, k and v, and where the call has them ab, q_segment_ids, kv_segment_ids and do.
NumPy's format knows no bfloat16, so such an array is stored as its bits, in uint16.
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

NAMES = ("q", "k", "v", "ab", "q_segment_ids", "kv_segment_ids", "do")
NEEDED = ("q", "k", "v")
CALL = "call"

MOST_BYTES = 2 * 2**30
"""Of all arrays in a file."""


class TensorError(ValueError):
    """A file of tensors that cannot be used; the message is one line."""


def read(path: Path, expected: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """The arrays of a file, held against what the call says of them.

    expected: name -> (dtype name, shape) of every array that may be there; q, k and v must be.
    Raises TensorError for a file that is missing, is no `.npz`, or does not fit.
    """
    found = read_raw(path)
    for name in NAMES:
        if name in found and name not in expected:
            raise TensorError(f"{path.name} holds {name}, but the case has none")
    if ("q_segment_ids" in found) != ("kv_segment_ids" in found):
        raise TensorError(f"{path.name} holds one of q_segment_ids and kv_segment_ids, not both")
    return {
        name: _checked(found[name], name, dtype, shape)
        for name, (dtype, shape) in expected.items()
        if name in found
    }


def read_raw(path: Path) -> dict[str, np.ndarray]:
    """Every array of an `.npz` file as it is stored; never runs code from the file.

    Raises TensorError. What an array claims to be is held against the bytes that there are, before
    any memory is taken for it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = dict(_stored(archive))
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:200]
        raise TensorError(f"{path} cannot be read as .npz ({reason})") from None
    for name in NEEDED:
        if name not in found:
            raise TensorError(f"{path.name} holds no {name}")
    return found


# What zipfile raises on files that are broken, encrypted, or packed by other means.
_BROKEN = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


def _stored(archive: zipfile.ZipFile) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of each member. Raises ValueError for one that should not be there."""
    members = archive.infolist()
    names = [member.filename.removesuffix(".npy") for member in members]
    for name in names:
        if name not in (*NAMES, CALL):
            shown = repr(name[:40])
            raise ValueError(f"it holds {shown}; known are {', '.join((*NAMES, CALL))}")
        if names.count(name) > 1:
            raise ValueError(f"it holds {name} twice")
    if any(member.compress_type not in _PACKINGS for member in members):
        raise ValueError("it is packed by another method than NumPy's")
    total = sum(member.file_size for member in members)
    if total > MOST_BYTES:
        raise ValueError(
            f"its arrays take {total / 2**30:.3g} GiB; at most {MOST_BYTES / 2**30:.0f} are read"
        )
    for name, member in zip(names, members, strict=True):
        with archive.open(member) as file:
            yield name, _array(file, name, member.file_size)


_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _array(file: IO[bytes], name: str, size: int) -> np.ndarray:
    """One member in NumPy's format, of `size` bytes. Raises ValueError for anything else.

    The header is Python's notation for a dictionary. It is read by a pattern: evaluating it, be it
    as a literal alone, is what NumPy itself has to limit and warn of.
    """
    start = file.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:] not in _LENGTH_BYTES:
        raise ValueError(f"{name} is not in NumPy's format, version 1.0, 2.0 or 3.0")
    length = int.from_bytes(file.read(_LENGTH_BYTES[start[6:]]), "little")
    header = _HEADER.fullmatch(file.read(min(length, _MOST_HEADER)).decode("latin-1"))
    if header is None:
        raise ValueError(f"{name} does not hold numbers; objects are never unpickled")
    dtype = np.dtype(header["dtype"])
    shape = tuple(int(each) for each in re.findall(r"\d+", header["shape"]))
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > size:
        raise ValueError(f"{name} claims shape {str(shape)[:80]} of {dtype} in {size} bytes")
    data = file.read(claimed)
    if len(data) != claimed or file.read(1):
        raise ValueError(f"{name} is not of the {claimed} bytes that its shape takes")
    order: Any = "F" if header["columns"] == "True" else "C"
    return np.frombuffer(bytearray(data), dtype).reshape(shape, order=order)


_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
_MOST_HEADER = 2**16
_HEADER = re.compile(
    r"\{'descr': ?'(?P<dtype>[<>|=]?[fiuUS][0-9]{1,6})', ?"
    r"'fortran_order': ?(?P<columns>True|False), "
    r"?'shape': ?\((?P<shape>[0-9, ]*)\),? ?\}\s*"
)
"""Of an array of numbers or a text, as NumPy writes it."""


def write(path: Path, arrays: Mapping[str, np.ndarray | None]) -> None:
    """Stores arrays in the form that `read` takes; absent ones (None) are left out."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            if array is None:
                continue
            stored = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, stored, allow_pickle=False)


def _checked(array: np.ndarray, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    stored = "uint16" if dtype == "bfloat16" else dtype
    if array.dtype != np.dtype(stored):
        raise TensorError(f"{name} is stored as {array.dtype}; {dtype} is stored as {stored}")
    if array.shape != shape:
        raise TensorError(f"{name} has shape {array.shape}; the case says {shape}")
    return array.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else array
