"""Failures as entries of an example database. What comes from one is data that somebody handed in:
it is held to the same rules as a file given to `shrink`, and names no target that is imported."""

import json
import pathlib
from dataclasses import dataclass
from typing import Any

from properties.cases.case import Case
from properties.commands import reading, replay

_MOST_BYTES = 2**20
_KEPT = ("schema", "target", "property", "mode", "masked_rows", "case", "verdict")


@dataclass(frozen=True)
class Entry:
    """A case to replay under some properties."""

    properties: tuple[str, ...]
    case: Case


def key_of(target: str) -> bytes:
    """Where the failures of a target are kept."""
    return f"attention-properties fuzz {target}".encode()


def encoded(report: dict[str, Any]) -> bytes:
    """A report, without what differs between machines that find the same."""
    return json.dumps({name: report[name] for name in _KEPT}, sort_keys=True).encode()


def decoded(value: bytes) -> Entry:
    """Raises ValueError, of one line, for what is no report or case that can be run here."""
    if len(value) > _MOST_BYTES:
        raise ValueError(f"{len(value)} bytes, of which a report has at most {_MOST_BYTES}")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    request = replay.parse(text, pathlib.Path())
    if request.case.tensors is not None:
        raise ValueError("its values are in a file, which a database does not hold")
    reading.checked(request)
    return Entry(replay.properties_of(request.property, request.case), request.case)
