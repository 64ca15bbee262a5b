"""What there is of each transformation: variants that suit a case, and cases to transform."""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from properties.cases.case import Case
from properties.claims.transformations.control import JIT_FORMS, POLICIES, PRECISIONS
from properties.claims.transformations.passing import KINDS
from properties.drawing import space

Variants = Iterator[dict[str, Any]]


@st.composite
def cases(draw: st.DrawFn, **restrictions: Any) -> Case:
    """A legal call; `restrictions` as in `strategies.cases`.

    Small: a transformation sees shapes and options, not how many tiles there are.
    """
    of = space.Space(**restrictions, q_lengths=(24, 9, 128), kv_lengths=(24, 256), head_dims=(8, 1))
    return space.draw_case(lambda options: options[draw(st.integers(0, len(options) - 1))], of)


def variants(name: str, case: Case) -> list[dict[str, Any]]:
    """The parameters of every variant of the transformation `name`, simplest first."""
    return list(_VARIANTS[name](case))


def _backward(case: Case) -> bool:
    return case.block_sizes is None or case.block_sizes.backward


def _only(**choices: Any) -> Callable[[Case], Variants]:
    """Variants by the values of one parameter, or a single one without parameters."""

    def listed(case: Case) -> Variants:
        if not choices:
            yield {}
        for name, values in choices.items():
            for value in values:
                yield {name: value}

    return listed


def _of_gradients(variants: Callable[[Case], Variants]) -> Callable[[Case], Variants]:
    return lambda case: variants(case) if _backward(case) else iter(())


def _grad(case: Case) -> Variants:
    names = ("q", "k", "v") if case.bias is None else ("q", "k", "v", "ab")
    for size in range(1, len(names) + 1):
        for subset in combinations(names, size):
            yield {"gradient_of": list(subset), "form": "grad"}
    yield {"gradient_of": list(names), "form": "value_and_grad"}


def _vmap(case: Case) -> Variants:
    arrays = ["q", "k", "v"]
    arrays += [] if case.bias is None else ["ab"]
    arrays += [] if case.segments is None else ["q_segment_ids", "kv_segment_ids"]
    arrays += ["do"] if _backward(case) else []
    everything = dict.fromkeys(arrays, 0)
    # One array after another, each along an axis of its own.
    for number, name in enumerate(arrays):
        axis = (0, 1, -1)[number % 3]
        yield {"axes": {name: axis}, "levels": 1, "gradient": "inside"}
    yield {"axes": everything, "levels": 1, "gradient": "inside"}
    yield {"axes": everything, "levels": 2, "gradient": "inside"}
    yield {"axes": {"q": 2, "v": -2}, "levels": 2, "gradient": "inside"}
    yield {"axes": everything, "levels": 1, "gradient": "around"}


def _shard_map(case: Case) -> Variants:
    if case.batch % 2 == case.heads % 2 == 0 and _fits_a_shard(case):
        yield {"shards": [2, 2]}


def _fits_a_shard(case: Case) -> bool:
    return case.block_sizes is None or case.block_sizes.block_b <= case.batch // 2


def _weak_types(case: Case) -> Variants:
    if case.dtype == "float32":
        yield {}


_VARIANTS: dict[str, Callable[[Case], Variants]] = {
    "transformations.jit": _only(form=JIT_FORMS),
    "transformations.grad": _of_gradients(_grad),
    "transformations.checkpoint": _of_gradients(_only(policy=POLICIES)),
    "transformations.scan": _only(),
    "transformations.fori_loop": _only(),
    "transformations.cond": _only(),
    "transformations.x64": _only(),
    "transformations.matmul_precision": _only(precision=PRECISIONS),
    "transformations.vmap": _vmap,
    "transformations.shard_map": _shard_map,
    "transformations.array_kind": _only(kind=KINDS),
    "transformations.weak_types": _weak_types,
    "transformations.ahead_of_time": _only(),
    "transformations.another_process": _only(),
}

DESIGNATED = (
    "transformations.shard_map",
    "transformations.ahead_of_time",
    "transformations.another_process",
)
"""Transformations that are too slow to be put to many cases."""

DRAWN = tuple(name for name in _VARIANTS if name not in DESIGNATED)
