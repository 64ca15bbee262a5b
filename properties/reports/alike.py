"""Failures that are most likely one: many tests share a property, and find the same fault."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from properties.shrinking.signature import Signature

Failure = Mapping[str, Any]


def groups(failures: Sequence[Failure]) -> list[list[int]]:
    """Places in `failures` of those with one signature, the simplest case of each first.

    In the order in which the signatures were found.
    """
    found: dict[Signature | None, list[int]] = {}
    for place, failure in enumerate(failures):
        found.setdefault(Signature.of(failure), []).append(place)
    return [sorted(group, key=lambda place: _size(failures[place])) for group in found.values()]


def _size(failure: Failure) -> tuple[int, int]:
    case = failure["case"]
    logits = case["batch"] * case["heads"] * case["q_len"] * case["kv_len"]
    return logits * case["head_dim"], len(json.dumps(case))
