"""Calls at the very edge of the contract, which must be accepted and right.

There are two kinds.  An edge of form passes an argument of a legal case in an unusual but legal
way, its value the case's own: `parameters["edge"]` names the argument, `parameters["form"]` the
way.  An edge of sizes is a case at a limit of what the rules allow, passed as any other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from properties.cases.case import Blocks, Case, CaseError, Segments
from properties.drawing.breaking.arguments import Call


class Indexable:
    """An integer to `operator.index` alone."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


FORMS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "causal": {"np.bool_": np.bool_},
    "debug": {"np.bool_": np.bool_},
    "block_sizes": {
        "np.int64": np.int64,
        "np.int32": np.int32,
        "np.uint16": np.uint16,
        "index": Indexable,
    },
    "sm_scale": {
        "np.float64": np.float64,
        "np.float32": np.float32,
        "np.float16": np.float16,
        "int": int,
        "np.int8": np.int8,
        "np.int64": np.int64,
        "np.uint32": np.uint32,
    },
}
"""Argument -> name of a form -> the conversion to it."""

FORM_SCALES = (1.0, 0.0, 2.0)
"""Scales that every form of a scale holds exactly, negative ones aside."""


def apply_form(made: Call, edge: str, form: str) -> None:
    """Passes an argument of the call in another form; raises CaseError for one not listed."""
    if edge not in FORMS or form not in FORMS[edge]:
        listed = "; ".join(f"{name}: {', '.join(forms)}" for name, forms in FORMS.items())
        raise CaseError(f"parameters: edge {edge!r} has no form {form!r}; known: {listed}")
    convert = FORMS[edge][form]
    if edge != "block_sizes":
        made.arguments[edge] = convert(made.arguments[edge])
        return
    if not made.blocks:
        made.whole_blocks()
    made.blocks = {name: convert(size) for name, size in made.blocks.items()}


def _blocks(q_len: int, kv_len: int, **changed: int) -> Blocks:
    """Blocks of every kernel, each as large as what it divides but for those that are named."""
    whole = dict(block_q=q_len, block_k_major=kv_len, block_k=kv_len, block_b=1)
    whole |= dict(block_q_major_dkv=q_len, block_q_dkv=q_len, block_q_dq=q_len)
    whole |= dict(block_k_major_dkv=kv_len, block_k_dkv=kv_len)
    whole |= dict(block_k_major_dq=kv_len, block_k_dq=kv_len)
    return Blocks(**{**whole, **changed})


def _segments(dtype: str, q_len: int, kv_len: int) -> Segments:
    """Two segments whose ids are the least and the largest of their dtype."""
    ids = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]

    def row(length: int) -> tuple[tuple[int, int], ...]:
        half = length // 2
        runs = ((ids[0], half), (ids[1], length - half))
        return tuple(run for run in runs if run[1])

    return Segments(dtype, (row(q_len),), (row(kv_len),))


def _case(q_len: int, kv_len: int, **fields: Any) -> Case:
    return Case(
        **{"batch": 1, "heads": 1, "q_len": q_len, "kv_len": kv_len, "head_dim": 8, **fields}
    )


SIZES: tuple[Case, ...] = (
    _case(1, 1, head_dim=1),
    _case(1, 1, head_dim=1, block_sizes=_blocks(1, 1)),
    _case(9, 1, block_sizes=_blocks(9, 1)),
    _case(1, 129),
    _case(7, 7, block_sizes=_blocks(7, 7)),
    _case(129, 129, block_sizes=_blocks(129, 129)),
    # Blocks of queries that leave a tail, in each kernel alone.
    _case(9, 8, block_sizes=_blocks(9, 8, block_q=8)),
    _case(20, 8, block_sizes=_blocks(20, 8, block_q_major_dkv=16, block_q_dkv=16)),
    _case(20, 8, block_sizes=_blocks(20, 8, block_q_dq=16)),
    # Inner blocks of queries need not be aligned.
    *(_case(24, 8, block_sizes=_blocks(24, 8, block_q_dkv=inner)) for inner in (1, 4, 12)),
    _case(2, 3, batch=3, block_sizes=_blocks(2, 3, block_b=3)),
    _case(2, 3, batch=3, block_sizes=_blocks(2, 3, block_b=2)),
    # Major blocks that divide kv_len without being a power of two, minor blocks below them.
    _case(8, 384, block_sizes=_blocks(8, 384, block_k_major=128, block_k=128)),
    _case(8, 384, block_sizes=_blocks(8, 384, block_k=128, block_k_dkv=128, block_k_dq=128)),
    # Forward blocks alone are enough where nothing is differentiated.
    _case(8, 128, block_sizes=Blocks(8, 128, 128, 1)),
    # kv_len off the tile: a single step, with and without segment ids, or padding inside.
    _case(8, 200, block_sizes=_blocks(8, 200)),
    _case(8, 200, block_sizes=_blocks(8, 200), segments=_segments("int32", 8, 200)),
    _case(8, 257, segments=_segments("int32", 8, 257)),
    # The narrow and the unsigned integers, at their limits.
    *(
        _case(8, 128, segments=_segments(dtype, 8, 128))
        for dtype in ("int8", "uint8", "int16", "uint16", "uint32")
    ),
    # Head dimensions off the lanes, where the keys take several steps.
    *(
        _case(
            8, 256, head_dim=head_dim, block_sizes=_blocks(8, 256, block_k_major=128, block_k=128)
        )
        for head_dim in (1, 129, 192)
    ),
)
"""Cases at the limits, simplest first."""
