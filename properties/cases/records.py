"""Reading JSON strictly: each function returns what it was promised or says in one line why not."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class CaseError(ValueError):
    """A case that cannot be read; the message is one line and names the field."""


def parsed(text: str) -> Any:
    def no_constant(name: str) -> None:
        raise CaseError(f"{name}: a case holds finite numbers only")

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CaseError(f"{_label(twice)}: given twice")
        return record

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_duplicates)
    except json.JSONDecodeError as error:
        raise CaseError(f"not JSON: {error}") from None
    except RecursionError:
        raise CaseError("not a case: nested too deeply") from None


def record(
    value: object, where: str, *, required: Sequence[str], optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    prefix = f"{where}." if where else ""
    if not isinstance(value, Mapping):
        raise CaseError(f"{where or 'case'}: got {shown(value)}; expected an object")
    for name in value:
        if name not in required and name not in optional:
            raise CaseError(f"{prefix}{_label(name)}: unknown field")
    for name in required:
        if name not in value:
            raise CaseError(f"{prefix}{name}: missing")
    return value


def items(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise CaseError(f"{where}: got {shown(value)}; expected a list")
    return value


def integer(value: object, where: str, *, least: int, below: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CaseError(f"{where}: got {shown(value)}; expected an integer")
    if value < least:
        raise CaseError(f"{where}: got {shown(value)}; must be at least {least}")
    if below is not None and value >= below:
        raise CaseError(f"{where}: got {shown(value)}; must be below {below}")
    return value


def boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise CaseError(f"{where}: got {shown(value)}; expected true or false")
    return value


def choice(value: object, where: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise CaseError(f"{where}: got {shown(value)}; expected one of {', '.join(choices)}")
    return value


def _label(name: object) -> str:
    """A field's name as it is, unless it would not stay on one line."""
    return name if isinstance(name, str) and name.isprintable() else shown(name)


def shown(value: object) -> str:
    """A value as JSON would show it, on one line and not too long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
