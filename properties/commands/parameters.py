"""What stands in a case's parameters, held to its kind where a case comes from outside.

Properties say what each parameter means, and refuse values that do not suit the case. They may rely
on its kind.
"""

from collections.abc import Callable
from typing import Any

from properties.cases import records
from properties.cases.case import BACKWARD_BLOCKS, FORWARD_BLOCKS, Case, CaseError
from properties.drawing.breaking import BREAKERS


def check(case: Case) -> None:
    """Raises CaseError for a parameter of another kind than its name says, and for a way to break
    a rule that the case does not have."""
    breaker = BREAKERS.get(case.breaks or "")
    if breaker is not None:
        if dict(case.parameters) not in breaker.ways(case):
            raise CaseError(
                f"parameters: got {records.shown(dict(case.parameters))}; none of the ways "
                f"in which this case can break {case.breaks}"
            )
        return
    for kind, names in NAMES.items():
        for name in names:
            if name in case.parameters and not _KINDS[kind](case.parameters[name]):
                got = records.shown(case.parameters[name])
                raise CaseError(f"parameters.{name}: got {got}; expected {kind}")


def _integer(value: Any) -> bool:
    return type(value) is int


def _integers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_integer, value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _blocks(value: Any) -> bool:
    """Fields of BlockSizes, the backward's all or none; null, or how else they are chosen."""
    if value is None or isinstance(value, str):
        return True
    forward, backward = {*FORWARD_BLOCKS}, {*BACKWARD_BLOCKS}
    return (
        isinstance(value, dict)
        and {*value} in (forward, forward | backward)
        and all(_integer(size) and size > 0 for size in value.values())
    )


_KINDS: dict[str, Callable[[Any], bool]] = {
    "an integer": _integer,
    "a list of integers": _integers,
    "an integer or a list of two": lambda value: (
        _integer(value) or (_integers(value) and len(value) == 2)
    ),
    "a string": lambda value: isinstance(value, str),
    "a list of strings": _texts,
    "true or false": lambda value: isinstance(value, bool),
    "an object": lambda value: isinstance(value, dict),
    "fields of BlockSizes": _blocks,
}

NAMES: dict[str, tuple[str, ...]] = {
    "an integer": (
        *("row", "v_power", "do_power", "constant", "shift", "period", "levels", "order"),
    ),
    "a list of integers": ("batch_order", "head_order", "copy", "labels", "shards"),
    "an integer or a list of two": ("cut",),
    "a string": (
        *("replacement", "without", "field", "form", "policy", "precision", "kind", "gradient"),
        *("copies", "edge"),
    ),
    "a list of strings": ("gradient_of", "generations", "too_large", "everywhere"),
    "true or false": ("x64",),
    "an object": ("axes",),
    "fields of BlockSizes": ("other_blocks",),
}
