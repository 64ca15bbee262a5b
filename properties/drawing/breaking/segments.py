"""Rules on segment ids: their type, shapes and dtypes."""

import numpy as np

from properties.cases.case import Case, CaseError
from properties.drawing.breaking.arguments import Call, SegmentIds
from properties.drawing.breaking.breaker import Ways, breaks, each
from properties.drawing.breaking.odd_values import odd_dtype, odd_value


@breaks(
    "segments_type",
    each(
        form=(
            "tuple",
            "list",
            "q alone",
            "dict",
            "integer",
            "q is None",
            "kv is None",
            "lists",
            "no dtype",
        )
    ),
)
def _segments_type(made: Call, form: str) -> None:
    q, kv = made.segment_ids()
    forms = {
        "tuple": (q, kv),
        "list": [q, kv],
        "q alone": q,
        "dict": {"q": q, "kv": kv},
        "integer": 0,
        "q is None": SegmentIds(None, kv),
        "kv is None": SegmentIds(q, None),
        "lists": SegmentIds(q.tolist(), kv.tolist()),
        "no dtype": SegmentIds(odd_value("no dtype"), odd_value("no dtype")),
    }
    if form not in forms:
        raise CaseError(f"parameters.form: {form!r} is none of {', '.join(forms)}")
    made.arguments["segment_ids"] = forms[form]


def _segment_shapes(case: Case) -> Ways:
    for half, length in (("q", case.q_len), ("kv", case.kv_len)):
        right = (case.batch, length)
        wrong = [
            *((case.batch, length + 1), (case.batch + 1, length), (length,), (length, case.batch)),
            *((case.batch, 1, length), (case.batch, 1), (1, length)),
            (case.batch, case.q_len + case.kv_len - length),
        ]
        for shape in dict.fromkeys(wrong):
            if shape != right:
                yield {"half": half, "shape": list(shape)}


@breaks("segments_shape", _segment_shapes)
def _segments_shape(made: Call, half: str, shape: list[int]) -> None:
    ids = made.segment_ids()
    wrong = np.zeros(tuple(shape), ids.q.dtype)
    made.arguments["segment_ids"] = ids._replace(**{half: wrong})


@breaks(
    "segments_dtype",
    each(dtype=("float32", "bool", "int64", "uint64", "bfloat16", "float16", "complex64")),
)
def _segments_dtype(made: Call, dtype: str) -> None:
    q, kv = made.segment_ids()
    zeros = (np.zeros(half.shape, odd_dtype(dtype)) for half in (q, kv))
    made.arguments["segment_ids"] = SegmentIds(*zeros)


@breaks(
    "segments_mixed",
    each(half=("q", "kv"), dtypes=(["int32", "int8"], ["int32", "uint32"], ["int16", "uint8"])),
)
def _segments_mixed(made: Call, half: str, dtypes: list[str]) -> None:
    ids = made.segment_ids()
    first, second = dtypes if half == "q" else reversed(dtypes)
    made.arguments["segment_ids"] = SegmentIds(
        np.zeros(ids.q.shape, odd_dtype(first)), np.zeros(ids.kv.shape, odd_dtype(second))
    )
