"""Calls that break exactly one rule of the contract, and calls at its very edge.

A case to be refused is a legal case with `breaks`, the rule, and `parameters`, one of the ways to
break it that `BREAKERS` lists for that case.  `call` builds the arguments: of such a case, of one
at the edge of the rules (see `edges`), and of any other.
"""

import inspect
from collections.abc import Callable
from typing import Any

from properties.cases.case import Case, CaseError

# The four modules of rules enter theirs into BREAKERS; their order is that of the table.
from properties.drawing.breaking import arrays, blocks, scalars, segments
from properties.drawing.breaking.arguments import Call, SegmentIds
from properties.drawing.breaking.breaker import BREAKERS, Breaker
from properties.drawing.breaking.edges import apply_form

__all__ = ["BREAKERS", "Breaker", "SegmentIds", "arrays", "blocks", "call", "scalars", "segments"]


def call(case: Case) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments of a case's call, exactly as they are to be passed, and its blocks.

    The arguments are q, k, v, ab, segment_ids, causal, sm_scale and debug.  Segment ids that are an
    instance of this module's `SegmentIds` stand for the target's own class; any others are passed
    as they are.  The blocks are the fields to construct the target's BlockSizes from, or None.
    Where a case breaks `block_sizes_type`, the arguments hold block_sizes too, to be passed as it
    is.  A case that breaks `backward_missing` is to be differentiated by
    `parameters["gradient_of"]`.

    Raises CaseError where the parameters do not say how to break the rule.
    """
    made = Call(case)
    parameters = dict(case.parameters)
    if case.breaks is not None:
        if case.breaks not in BREAKERS:
            raise CaseError(f"breaks: {case.breaks} is not broken by the arguments of a call")
        _apply(BREAKERS[case.breaks].apply, made, parameters)
    elif "edge" in parameters:
        _apply(apply_form, made, parameters)
    return made.arguments, made.blocks or None


def _apply(apply: Callable[..., None], made: Call, parameters: dict[str, Any]) -> None:
    try:
        inspect.signature(apply).bind(made, **parameters)
    except TypeError as error:
        raise CaseError(f"parameters: {error}") from None
    apply(made, **parameters)
