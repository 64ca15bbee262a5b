"""Rules on q, k, v and ab: what is an array, and of which shape."""

from collections.abc import Sequence

import numpy as np

from properties.cases.case import Case
from properties.drawing.breaking.arguments import Call, resized
from properties.drawing.breaking.breaker import Ways, breaks, each
from properties.drawing.breaking.odd_values import odd_value

_NO_ARRAYS = ("[[[[0.0]]]]", "1.0", "'no'", "object", "{}", "no shape", "no dtype")


@breaks("array_type", each(argument=("q", "k", "v", "ab"), value=_NO_ARRAYS))
def _array_type(made: Call, argument: str, value: str) -> None:
    made.arguments[argument] = odd_value(value)


@breaks("rank", each(argument=("q", "k", "v"), dimensions=(3, 5, 2, 0)))
def _rank(made: Call, argument: str, dimensions: int) -> None:
    array = made.arguments[argument]
    made.arguments[argument] = array[None] if dimensions == 5 else array[(0,) * (4 - dimensions)]


def _other_sizes(case: Case, axis: int, arguments: Sequence[str]) -> Ways:
    """One less, one more, far more, and the 1 that broadcasts; never zero, never what it is."""
    for argument in arguments:
        have = Call(case).arguments[argument].shape[axis]
        for size in sorted({have - 1, have + 1, 2 * have + 1, 1} - {0, have}):
            yield {"argument": argument, "size": size}


@breaks("batch_mismatch", lambda case: _other_sizes(case, 0, ("k", "v")))
def _batch_mismatch(made: Call, argument: str, size: int) -> None:
    made.arguments[argument] = resized(made.arguments[argument], 0, size)


@breaks("heads_mismatch", lambda case: _other_sizes(case, 1, ("k", "v")))
def _heads_mismatch(made: Call, argument: str, size: int) -> None:
    made.arguments[argument] = resized(made.arguments[argument], 1, size)


@breaks("kv_len_mismatch", lambda case: _other_sizes(case, 2, ("v",)))
def _kv_len_mismatch(made: Call, argument: str, size: int) -> None:
    made.arguments[argument] = resized(made.arguments[argument], 2, size)


@breaks("head_dim_mismatch", lambda case: _other_sizes(case, 3, ("k",)))
def _head_dim_mismatch(made: Call, argument: str, size: int) -> None:
    made.arguments[argument] = resized(made.arguments[argument], 3, size)


@breaks("v_head_dim", lambda case: _other_sizes(case, 3, ("v",)))
def _v_head_dim(made: Call, argument: str, size: int) -> None:
    made.arguments[argument] = resized(made.arguments[argument], 3, size)


@breaks("empty", each(dimension=("batch", "heads", "q_len", "kv_len", "head_dim")))
def _empty(made: Call, dimension: str) -> None:
    # Everything agrees on the zero, so that nothing else is wrong with the call.
    dimensions: dict[str, tuple[str, ...]] = {
        "q": ("batch", "heads", "q_len", "head_dim"),
        "k": ("batch", "heads", "kv_len", "head_dim"),
        "v": ("batch", "heads", "kv_len", "head_dim"),
        "ab": ("batch", "heads", "q_len", "kv_len"),
    }
    arguments = made.arguments
    for name, axes in dimensions.items():
        if arguments[name] is not None and dimension in axes:
            arguments[name] = resized(arguments[name], axes.index(dimension), 0)
    if arguments["segment_ids"] is not None:
        halves: dict[str, tuple[str, ...]] = {"q": ("batch", "q_len"), "kv": ("batch", "kv_len")}
        for half, axes in halves.items():
            if dimension in axes:
                ids = resized(getattr(made.segment_ids(), half), axes.index(dimension), 0)
                arguments["segment_ids"] = made.segment_ids()._replace(**{half: ids})
    made.blocks = {}


def _bias_shapes(case: Case) -> Ways:
    """Shapes that broadcast to the right one, and near misses."""
    right = (case.batch, case.heads, case.q_len, case.kv_len)
    batch, heads, q_len, kv_len = right
    wrong = [
        *((1, heads, q_len, kv_len), (batch, 1, q_len, kv_len), (1, 1, q_len, kv_len)),
        *((batch, heads, 1, kv_len), (batch, heads, q_len, 1), (batch, heads, kv_len, q_len)),
        *((q_len, kv_len), (heads, q_len, kv_len), (1, *right), ()),
        *((batch, heads, q_len, kv_len + 1), (batch, heads, q_len + 1, kv_len)),
        *((batch + 1, heads, q_len, kv_len), (batch, heads + 1, q_len, kv_len)),
    ]
    return ({"shape": list(shape)} for shape in dict.fromkeys(wrong) if shape != right)


@breaks("bias_shape", _bias_shapes)
def _bias_shape(made: Call, shape: list[int]) -> None:
    made.arguments["ab"] = np.zeros(tuple(shape), made.bias().dtype)
