"""The transformations by name, and what all of them transform; the modules beside enter theirs."""

from collections.abc import Callable
from typing import Any

import jax

from properties.judging.calls import Calls, Outputs, Property, registering

PROPERTIES: dict[str, Property] = {}

transformation = registering("transformations", PROPERTIES)


def attention(calls: Calls) -> Callable[..., Any]:
    """The call as a function of q, k, v, ab, q segment ids and kv segment ids."""
    case, target = calls.case, calls.target
    blocks = case.block_sizes

    def attend(q: Any, k: Any, v: Any, ab: Any, q_ids: Any, kv_ids: Any) -> Any:
        return target.call(
            *(q, k, v, ab),
            None if q_ids is None else target.segment_ids(q_ids, kv_ids),
            causal=case.causal,
            sm_scale=case.sm_scale,
            block_sizes=None if blocks is None else target.block_sizes(**blocks.fields()),
            debug=False,
        )

    return attend


def with_gradients(calls: Calls, attend: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A function of the arrays of a call, do the last of them, that gives o and the gradients.

    attend: of the other arrays. Without gradients to ask for, it gives o alone.
    """

    def both(*arrays: Any) -> dict[str, Any]:
        *inputs, do = arrays
        if not calls.of:
            return {"o": attend(*inputs)}
        places = [("q", "k", "v", "ab").index(name) for name in calls.of]

        def of_chosen(*chosen: Any) -> Any:
            given = list(inputs)
            for place, array in zip(places, chosen, strict=True):
                given[place] = array
            return attend(*given)

        o, vjp = jax.vjp(of_chosen, *(inputs[place] for place in places))
        return {"o": o} | dict(zip([f"d{name}" for name in calls.of], vjp(do), strict=True))

    return both


def unchanged(calls: Calls, got: Outputs) -> None:
    """A transformed call gives what the plain one gives."""
    plain = calls.plain()
    calls.repeats(got, {name: plain[name] for name in got}, calls.plain_truth)
