"""What a rule is: how one jaxpr primitive becomes one Python expression."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from properties.engines.numpy_engine.arithmetic import is_narrow


@dataclass(frozen=True)
class Operand:
    """A value of the program being written: its name in the source, its shape and dtype.

    `constant` holds the value itself where it is known before anything runs.
    """

    code: str
    shape: tuple[int, ...]
    dtype: Any
    constant: Any = None

    def __str__(self) -> str:
        return self.code


class Names(Protocol):
    """Gives objects a name in the source."""

    def name(self, thing: Any) -> str: ...


# From (names, the equation's parameters, the result's abstract value, operands) to source.
Rule = Callable[..., str]


def register(rules: dict[str, Rule], *primitives: str) -> Callable[[Rule], Rule]:
    """A decorator that enters a rule into `rules` under its primitives' names."""

    def enter(function: Rule) -> Rule:
        rules.update(dict.fromkeys(primitives, function))
        return function

    return enter


def widened(operand: Operand) -> str:
    """The operand as float32 where its own format is too narrow to compute in."""
    return f"{operand}.astype(np.float32)" if is_narrow(operand.dtype) else operand.code


def rounded(names: Names, source: str, dtype: np.dtype) -> str:
    """`source`, rounded to dtype."""
    return f"({source}).astype({names.name(dtype)})"
