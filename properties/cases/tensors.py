"""Real tensors in an `.npz` file: the arrays of a call that a user has met, not a family's.

The file holds q, k and v, and where the call has them ab, q_segment_ids, kv_segment_ids and do.
NumPy's format knows no bfloat16, so such an array is stored as its bits, in uint16.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

NAMES = ("q", "k", "v", "ab", "q_segment_ids", "kv_segment_ids", "do")
NEEDED = ("q", "k", "v")


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
    """Every array of an `.npz` file as it is stored; never runs code from the file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise TensorError(f"{path} cannot be read as .npz ({error})") from None
    for name in NEEDED:
        if name not in found:
            raise TensorError(f"{path.name} holds no {name}")
    return found


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
