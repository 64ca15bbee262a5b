"""Programs: what is traced of a target for a case, kept so that further data reuses the trace."""

import collections
import functools
import json
from collections.abc import Callable, Hashable
from typing import Any

import jax

from properties import engines
from properties.cases.case import Arrays, Case
from properties.drawing import breaking
from properties.judging.targets import Target

# Each program of an interpreter holds an executable of some megabytes.
_KEPT = 48


class _Programs:
    """The programs used last, by what they are of."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._programs: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()

    def get(self, key: Hashable, trace: Callable[[], Any]) -> Any:
        program = self._programs.pop(key, None) or trace()
        self._programs[key] = program
        if len(self._programs) > self._limit:
            self._programs.popitem(last=False)
        return program


_programs = _Programs(_KEPT)


def inputs(arrays: Arrays) -> tuple[Any, ...]:
    """The arguments of a program of `outputs`; one of `gradients` takes do as well."""
    return (
        arrays.q,
        arrays.k,
        arrays.v,
        arrays.ab,
        arrays.q_segment_ids,
        arrays.kv_segment_ids,
    )


def outputs(case: Case, target: Target, arrays: Arrays) -> Any:
    """The program of `forward_function`, traced for arrays of these shapes."""
    key = (*_key(case, target), "outputs")
    function = forward_function(case, target)
    return _programs.get(key, lambda: engines.trace(function, *inputs(arrays)))


def forward_function(case: Case, target: Target) -> Callable[..., dict[str, Any]]:
    """Function of q, k, v, ab, q segment ids, kv segment ids (None where absent) that gives {"o"},
    and {"residuals"} where the target lets them be read."""

    def forward(q: Any, k: Any, v: Any, ab: Any, q_ids: Any, kv_ids: Any) -> dict[str, Any]:
        call, residuals = _calls(case, target, q_ids, kv_ids)
        results = {"o": call(q, k, v, ab)}
        if residuals is not None:
            results["residuals"] = residuals(q, k, v, ab)
        return results

    return forward


def gradients(case: Case, target: Target, arrays: Arrays, of: tuple[str, ...]) -> Any:
    """The program of `backward_function`, traced for arrays of these shapes."""
    key = (*_key(case, target), "gradients", of)
    function = backward_function(case, target, of)
    return _programs.get(key, lambda: engines.trace(function, *inputs(arrays), arrays.do))


def backward_function(
    case: Case, target: Target, of: tuple[str, ...]
) -> Callable[..., dict[str, Any]]:
    """Function of what `forward_function` takes and the cotangent do. It gives {"o"}, the gradient
    of each name in `of` ("q" as "dq" and so on), and {"residuals"} where they can be read."""

    def backward(
        q: Any, k: Any, v: Any, ab: Any, q_ids: Any, kv_ids: Any, do: Any
    ) -> dict[str, Any]:
        call, residuals = _calls(case, target, q_ids, kv_ids)
        primals = {"q": q, "k": k, "v": v, "ab": ab}

        def of_chosen(*chosen: Any) -> Any:
            return call(*(primals | dict(zip(of, chosen, strict=True))).values())

        o, vjp = jax.vjp(of_chosen, *(primals[name] for name in of))
        results = {"o": o}
        results |= {f"d{name}": gradient for name, gradient in zip(of, vjp(do), strict=True)}
        if residuals is not None:
            results["residuals"] = residuals(q, k, v, ab)
        return results

    return backward


def _key(case: Case, target: Target) -> tuple[Hashable, ...]:
    edge = json.dumps(dict(case.parameters)) if "edge" in case.parameters else None
    return target, case.configuration, edge


def _calls(
    case: Case, target: Target, q_ids: Any, kv_ids: Any
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """The target, and the reading of its residuals, as functions of q, k, v and ab."""
    passed, blocks = static_arguments(case)
    debug = passed.pop("debug")
    options = passed | {
        "segment_ids": None if q_ids is None else target.segment_ids(q_ids, kv_ids),
        "block_sizes": None if blocks is None else target.block_sizes(**blocks),
    }
    residuals = target.residuals
    return (
        functools.partial(target.call, **options, debug=debug),
        None if residuals is None else functools.partial(residuals, **options),
    )


def static_arguments(case: Case) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """causal, sm_scale and debug as they are passed, and the fields of BlockSizes, or None.

    Not always what the case says: a call at the edge passes them in unusual forms.
    """
    names = ("causal", "sm_scale", "debug")
    if "edge" in case.parameters:
        arguments, blocks = breaking.call(case)
        return {name: arguments[name] for name in names}, blocks
    blocks = None if case.block_sizes is None else case.block_sizes.fields()
    return dict(zip(names, (case.causal, case.sm_scale, False), strict=True)), blocks
