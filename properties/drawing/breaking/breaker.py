"""The table of rules and how each is broken; the modules beside this one fill it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from properties.cases.case import Case

Ways = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Breaker:
    """How to break one rule.

    ways(case): parameters of every way that the case offers, simplest first.  apply(call,
    **parameters) breaks the call.  q_lengths, kv_lengths: lengths at which there are ways.
    """

    ways: Callable[[Case], Ways]
    apply: Callable[..., None]
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]


BREAKERS: dict[str, Breaker] = {}
"""By rule; all but the rules on transformations, which no argument of a single call breaks."""


def breaks(
    rule: str,
    ways: Callable[[Case], Ways],
    q_lengths: tuple[int, ...] = (1, 2, 7, 8, 9, 24, 129),
    kv_lengths: tuple[int, ...] = (1, 2, 8, 128, 200, 256, 384),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers the function below it as what breaks `rule`, in the ways given."""

    def register(apply: Callable[..., None]) -> Callable[..., None]:
        BREAKERS[rule] = Breaker(ways, apply, q_lengths, kv_lengths)
        return apply

    return register


def each(**choices: Sequence[Any]) -> Callable[[Case], Ways]:
    """The same ways for any case: every combination of the choices."""

    def ways(case: Case) -> Ways:
        return [dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]

    return ways
