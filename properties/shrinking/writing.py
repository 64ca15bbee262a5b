"""A reduced failure as files: the case, which is a regression, and its report."""

import hashlib
import json
import os
import pathlib
from typing import Any

from properties.shrinking.reducing import Reduced


def write(report: dict[str, Any], reduced: Reduced, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the case and its report, with its tensors beside them, under a name from their hash.

    Each file appears whole or not at all. Raises ValueError where the folder cannot be written to.
    """
    assert reduced.case is not None
    case, record = reduced.case, report["case"]
    identity = json.dumps([report["target"], str(reduced.signature), record], sort_keys=True)
    # Tensors are named by their hash.
    name = f"{report['property']}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    files: dict[str, bytes] = {}
    if case.tensors is not None:
        record = record | {"tensors": f"{name}.npz"}
        report["case"] = record
        files[f"{name}.npz"] = (case.folder / case.tensors).read_bytes()
    files[f"{name}.case.json"] = (json.dumps(record) + "\n").encode()
    files[f"{name}.report.json"] = (json.dumps(report) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            replace_file(folder / file, content)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}; nothing can be written there") from error
    return [folder / file for file in files]


def replace_file(path: pathlib.Path, content: bytes) -> None:
    """Puts a file there at once: whoever reads it finds the old content or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
