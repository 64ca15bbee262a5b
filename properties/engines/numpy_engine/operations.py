"""What each jaxpr primitive is in NumPy: one Python expression, over the names of its operands.

Control flow is in `writer`, reads and writes of memory are in `references`.
"""

from typing import Any

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine import computations, rearrangements
from properties.engines.numpy_engine.rules import Names, Operand

RULES = {**computations.RULES, **rearrangements.RULES}


def expression(
    primitive: str, names: Names, params: dict[str, Any], out: Any, operands: list[Operand]
) -> str:
    """The source of one equation's value; of a tuple for a primitive with several results.

    Args:
      out: the (first) result's abstract value, for its shape and dtype.

    Raises Unsupported for a primitive, or a use of one, that has no rule.
    """
    if primitive not in RULES:
        raise Unsupported(f"the operation {primitive}")
    return RULES[primitive](names, params, out, *operands)
