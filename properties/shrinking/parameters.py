"""What a property needs beside the case: the simplest that the property has for that case."""

from itertools import islice
from typing import Any

from properties.cases.case import Case
from properties.claims import invariances, transformations
from properties.claims.invariances import drawing as of_invariances
from properties.claims.transformations import drawing as of_transformations
from properties.drawing.breaking import BREAKERS

# Of the ways to break a rule there may be thousands, simplest first.
_MOST_WAYS = 50


def simplest(name: str, case: Case) -> dict[str, Any] | None:
    """The simplest parameters of the property `name` for this case, None where it has none.

    None too where the property's parameters cannot be simplified: they are what is tested.
    """
    if name in invariances.PROPERTIES:
        if name not in of_invariances.DRAWN:
            return None
        return of_invariances.simplest(name, case)
    if name in transformations.PROPERTIES:
        found = of_transformations.variants(name, case)
        return found[0] if found else None
    if name == "refusals":
        if case.breaks is None:
            return None
        return next(iter(ways(case)), None)
    if name == "compilation":
        # Fields that are too large, or rough times of a compiler, are what is tested.
        return {"generations": case.parameters.get("generations", [])[:1]} | {
            key: value for key, value in case.parameters.items() if key == "too_large"
        }
    if name == "memory":
        return {"copies": "eager", "order": 0}
    return {}


def ways(case: Case) -> list[dict[str, Any]]:
    """Ways to break the rule that the case breaks, of which its parameters should be one."""
    breaker = BREAKERS.get(case.breaks or "")
    if breaker is None:
        return []
    return list(islice(breaker.ways(case), _MOST_WAYS))
