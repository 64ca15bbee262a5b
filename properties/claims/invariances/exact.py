"""Invariances that hold bit for bit: no arithmetic may see the difference between the two calls.

f(...) stands for everything a call gives: o, its residuals and all gradients.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from properties.cases.case import CaseError, Segments
from properties.claims.invariances.table import invariance
from properties.drawing.space import LANES
from properties.judging.calls import BY_ROW, Calls, Outputs
from properties.judging.targets import Target

LARGEST_BFLOAT16 = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
"""Beyond it the rounding of operands on a TPU gives inf, and 0 times inf is NaN."""


@invariance
def same_call(calls: Calls) -> None:
    """f(x) = f(x): in the same program run twice, and in one that is traced anew."""
    first = calls.run()
    calls.exact(calls.run(), first)
    # Programs are kept by target: for a copy of it everything is traced again.
    calls.exact(calls.run(target=replace(calls.target)), first)


@invariance
def hidden_keys(calls: Calls) -> None:
    """o, dq and dab of row i do not depend on k[j] and v[j] if i does not see j.

    All keys that are hidden from the query `parameters["row"]` of each head are replaced at once,
    by `parameters["replacement"]`; compared are all rows that see none of them.
    """
    row = calls.integer("row", 0, calls.case.q_len - 1)
    hidden = ~calls.visible[:, :, row]
    if not hidden.any():
        calls.stop("the row sees every key")
    kept = ~(calls.visible & hidden[:, :, None]).any(axis=-1)
    by_row = {name: array for name, array in calls.plain().items() if name in BY_ROW}
    calls.exact(calls.run(**_replaced(calls, hidden)), by_row, kept)


@invariance
def unseen_keys(calls: Calls) -> None:
    """f does not depend on k[j] and v[j] if no row sees j.

    `parameters["replacement"]` says what takes their place.
    """
    unseen = ~np.any(calls.visible, axis=2, keepdims=False)
    if not unseen.any():
        calls.stop("every key is seen by some row")
    calls.exact(calls.run(**_replaced(calls, unseen)), calls.plain())


@invariance
def hidden_bias(calls: Calls) -> None:
    """f does not depend on ab[i, j] if causal order or segments hide j from i.

    `parameters["replacement"]` takes its place, nan and infinities included.
    """
    ab = calls.arrays.ab
    if ab is None:
        calls.stop("no bias")
    hidden = ~calls.visible_without_bias
    if not hidden.any():
        calls.stop("neither causal order nor segments hide anything")
    value = REPLACING_BIAS[calls.choice("replacement", REPLACING_BIAS)]
    calls.exact(calls.run(ab=np.where(hidden, np.asarray(value, ab.dtype), ab)), calls.plain())


@invariance
def padding(calls: Calls) -> None:
    """f does not depend on what the kernel pads k and v with to fill their last block: the largest
    bfloat16 does as well as zeros.

    Of the kernel of this project, which pads by `jnp.pad` and masks the tail by its position. What
    another target pads, and how it masks that, is its own affair.
    """
    if not calls.target.strict:
        calls.stop("known of the kernel of this project only")
    if calls.case.kv_len % LANES == 0:
        calls.stop("nothing is padded")
    calls.exact(calls.run(target=_padding_otherwise(calls.target)), calls.plain())


@functools.cache
def _padding_otherwise(target: Target) -> Target:
    """The target with another number for the padding. Kept, so that its programs are."""
    pad = jnp.pad

    def filled(array: Any, widths: Any) -> Any:
        integer = jnp.issubdtype(array.dtype, jnp.integer)
        return pad(array, widths, constant_values=1 if integer else LARGEST_BFLOAT16)

    def padding_otherwise(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with mock.patch.object(jnp, "pad", filled):
                return function(*args, **options)

        return call

    residuals = target.residuals and padding_otherwise(target.residuals)
    return replace(target, call=padding_otherwise(target.call), residuals=residuals)


REPLACING_BIAS = {
    "other": 3.0,
    "nan": np.nan,
    "inf": np.inf,
    "minus_inf": -np.inf,
    "lowest": -LARGEST_BFLOAT16,
    "largest": LARGEST_BFLOAT16,
}
"""What may stand in a bias where nobody looks, by name, simplest first."""


@invariance
def permutation(calls: Calls) -> None:
    """f(x permuted) = f(x) permuted, for permutations of batch rows and of heads.

    Row b of the permuted batch is `parameters["batch_order"][b]`, and so for `head_order`.
    """
    batch = calls.order("batch_order", calls.case.batch)
    heads = calls.order("head_order", calls.case.heads)

    def moved(array: np.ndarray) -> np.ndarray:
        return array[batch][:, heads]

    got = calls.run(**_moved(calls, batch, heads))
    calls.repeats(got, calls.plain(), calls.plain_truth, moved=moved)


@invariance
def duplication(calls: Calls) -> None:
    """If row b of the batch is made a copy of row a, f gives for b what it gives for a, and the
    same as before for every other row.

    `parameters["copy"]` is [a, b].
    """
    order = list(range(calls.case.batch))
    pair = calls.parameters.get("copy")
    if not isinstance(pair, list) or len(pair) != 2 or not all(row in order for row in pair):
        raise CaseError(f"parameters.copy: got {pair!r}; expected two rows of the batch")
    order[pair[1]] = pair[0]
    got = calls.run(**_moved(calls, order, slice(None)))
    calls.repeats(got, calls.plain(), calls.plain_truth, moved=lambda array: array[order])


@invariance
def batch_split(calls: Calls) -> None:
    """f(x) = (f(x[:c]), f(x[c:])) along the batch, with the same explicit blocks.

    c is `parameters["cut"]`. Default blocks may depend on the batch: with them the two agree within
    the bounds of both.
    """
    case = calls.case
    cut = calls.integer("cut", 1, case.batch - 1)
    blocks = case.block_sizes
    if blocks is not None and blocks.block_b > min(cut, case.batch - cut):
        calls.stop("the parts are smaller than block_b")
    parts = [_part(calls, slice(0, cut)), _part(calls, slice(cut, None))]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    calls.repeats(whole, calls.plain(), calls.plain_truth, reshaped=True)


@invariance
def relabelling(calls: Calls) -> None:
    """f(segment ids) = f(g(segment ids)) for every injection g.

    `parameters["labels"]` lists the images of the ids that occur, in ascending order of these.
    """
    q_ids, kv_ids = calls.arrays.q_segment_ids, calls.arrays.kv_segment_ids
    if q_ids is None or kv_ids is None:
        calls.stop("no segments")
    present = np.unique(np.concatenate([q_ids.ravel(), kv_ids.ravel()]))
    labels = calls.parameters.get("labels")
    if not isinstance(labels, list) or not len(set(labels)) == len(labels) == len(present):
        raise CaseError(f"parameters.labels: got {labels!r}; expected {len(present)} different ids")
    limits = np.iinfo(q_ids.dtype)
    if not all(limits.min <= label <= limits.max for label in labels):
        raise CaseError(f"parameters.labels: got {labels!r}; expected ids of {q_ids.dtype}")
    images = np.array(labels, q_ids.dtype)
    calls.exact(
        calls.run(
            q_segment_ids=images[np.searchsorted(present, q_ids)],
            kv_segment_ids=images[np.searchsorted(present, kv_ids)],
        ),
        calls.plain(),
    )


SHALLOW, DEEP = 40.0, 120.0
"""exp(-40) times any number of a case is far above underflow; exp(-120) is 0 in float32."""


@invariance
def scaling(calls: Calls) -> None:
    """f(2^a v, 2^b do): o is 2^a, dv is 2^b, and dq, dk and dab are 2^(a + b) times as large.

    a and b are `parameters["v_power"]` and `parameters["do_power"]`. Rows with a weight that
    underflows, or comes near it, are left out: they get no cotangent.
    """
    a, b = (calls.integer(name, -20, 20) for name in ("v_power", "do_power"))
    if calls.case.values == "near_underflow":
        calls.stop("the values are near underflow")
    depth = calls.definition().depth
    near_underflow = (depth > SHALLOW) & (depth < DEEP)
    kept = ~np.any(near_underflow, axis=-1, keepdims=False)
    do = np.where(kept[..., None], calls.arrays.do, np.zeros_like(calls.arrays.do))
    before = calls.run(do=do)
    got = calls.run(v=_times(calls.arrays.v, a), do=_times(do, b))
    powers = {"o": a, "saved_o": a, "dv": b, "dq": a + b, "dk": a + b, "dab": a + b}
    scaled = {name: _times(array, powers.get(name, 0)) for name, array in before.items()}
    calls.exact(got, scaled, kept)


def _replaced(calls: Calls, keys: np.ndarray) -> dict[str, Any]:
    """k and v with others at `keys`, bool [batch, heads, kv_len]."""
    name = calls.choice("replacement", REPLACEMENTS)

    def replaced(array: np.ndarray) -> np.ndarray:
        if name == "zero":
            other = np.zeros_like(array)
        elif name == "other":
            # The neighbour in another order: numbers of the same kind, different for each key.
            other = -np.roll(array, 1, axis=2)
        else:
            # Both signs, so that products of both signs overflow.
            signs = 1 - 2 * (np.indices(array.shape).sum(axis=0) % 2)
            other = (signs * LARGEST_BFLOAT16).astype(array.dtype)
        return np.where(keys[..., None], other, array)

    return {"k": replaced(calls.arrays.k), "v": replaced(calls.arrays.v)}


REPLACEMENTS = ("other", "zero", "huge")
"""What takes the place of hidden keys, simplest first."""


def _moved(calls: Calls, batch: list[int], heads: list[int] | slice) -> dict[str, Any]:
    """The arrays of a call on those rows of the batch and those heads."""
    moved = {}
    for name, array in calls.arrays._asdict().items():
        if array is not None:
            moved[name] = array[batch] if name.endswith("segment_ids") else array[batch][:, heads]
    return moved


def _part(calls: Calls, rows: slice) -> Outputs:
    """The results of a call on some rows of the batch alone."""
    case = calls.case
    segments = case.segments
    if segments is not None:
        segments = Segments(segments.dtype, segments.q[rows], segments.kv[rows])
    count = len(range(case.batch)[rows])
    changed: dict[str, Any] = {
        name: x[rows] for name, x in calls.arrays._asdict().items() if x is not None
    }
    return calls.run(replace(case, batch=count, segments=segments), **changed)


def _times(array: np.ndarray, power: int) -> np.ndarray:
    """array 2^power, exactly."""
    return (array.astype(np.float64) * 2.0**power).astype(array.dtype)
