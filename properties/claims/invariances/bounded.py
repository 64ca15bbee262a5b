"""Invariances of the mathematics: roundings break them, by no more than the oracle's bounds allow.

Each compares two sides that are equal in exact arithmetic. What they may differ by is the sum of
the oracle's bounds on all outputs that enter, and for bfloat16 half an ulp of each.
"""

from dataclasses import replace
from typing import Any

import numpy as np

import oracle
from oracle.rounding import BFLOAT16
from properties.cases.case import BACKWARD_BLOCKS, FORWARD_BLOCKS, Blocks, Case, CaseError, Segments
from properties.claims.invariances.table import invariance
from properties.judging.calls import Calls, NothingToJudge
from properties.judging.verdict import Verdict, raised

GET_DEFAULT = "get_default"
"""What stands in parameters for the blocks that a target's BlockSizes chooses."""


@invariance
def block_choice(calls: Calls) -> None:
    """f with one choice of blocks is f with any other: they change roundings only.

    `parameters["other_blocks"]` holds the fields of the other choice, or null for none given, or
    "get_default" for what the target's BlockSizes gives for the shape, backward blocks included.
    """
    other = replace(calls.case, block_sizes=_other_blocks(calls))
    got, plain = calls.run(other), calls.plain()
    truth, of_other = calls.plain_truth(), calls.truth(other)
    calls.count_rows(truth)
    for name in calls.judged():
        if name in got:
            allowed = calls.tolerance(truth, plain, name) + calls.tolerance(of_other, got, name)
            calls.near(name, got[name], plain[name], allowed)


@invariance
def concatenation(calls: Calls) -> None:
    """f(x) with segments [0, 1] = (f(x first), f(x second)): two problems in one call are as good
    as two calls.

    `parameters["cut"]` is [queries, keys] of the first; the case has no segments of its own, and
    under causal order the two numbers are the same.
    """
    case = calls.case
    cut = calls.parameters.get("cut")
    if not isinstance(cut, list) or len(cut) != 2:
        raise CaseError(f"parameters.cut: got {cut!r}; expected [queries, keys]")
    q_cut, kv_cut = cut
    if not (0 < q_cut < case.q_len and 0 < kv_cut < case.kv_len):
        raise CaseError(f"parameters.cut: got {cut!r}; expected two parts of the lengths")
    if case.segments is not None or (case.causal and q_cut != kv_cut):
        raise CaseError("parameters.cut: the case must not have segments, nor a causal shift")
    case = replace(case, block_sizes=None)
    q_ids, kv_ids = (
        np.repeat(np.arange(length)[None] >= at, case.batch, axis=0).astype(np.int32)
        for length, at in ((case.q_len, q_cut), (case.kv_len, kv_cut))
    )
    joined: dict[str, Any] = {"q_segment_ids": q_ids, "kv_segment_ids": kv_ids}
    whole_case = replace(case, segments=_two_segments(case, q_cut, kv_cut))
    if calls.target.masked_rows == "any":
        # A row may see nothing in its part that sees something in the case.
        unseeing = ~calls.truth(whole_case, **joined).rows
        joined["do"] = np.where(
            unseeing[..., None], np.zeros_like(calls.arrays.do), calls.arrays.do
        )
    whole, truth = calls.run(whole_case, **joined), calls.truth(whole_case, **joined)
    arrays = calls.arrays._replace(**joined)
    calls.count_rows(truth)
    for rows, keys in (
        (slice(0, q_cut), slice(0, kv_cut)),
        (slice(q_cut, None), slice(kv_cut, None)),
    ):
        changed: dict[str, Any] = {name: getattr(arrays, name)[:, :, rows] for name in ("q", "do")}
        changed |= {name: getattr(calls.arrays, name)[:, :, keys] for name in ("k", "v")}
        if calls.arrays.ab is not None:
            changed["ab"] = calls.arrays.ab[:, :, rows, keys]
        part_case = replace(
            case, q_len=changed["q"].shape[2], kv_len=changed["k"].shape[2], segments=None
        )
        part, of_part = calls.run(part_case, **changed), calls.truth(part_case, **changed)
        inside = {"dk": keys, "dv": keys, "dab": (rows, keys)}
        for name in calls.judged():
            place = inside.get(name, rows)
            place = (slice(None), slice(None), *(place if isinstance(place, tuple) else (place,)))
            allowed = calls.tolerance(truth, whole, name)[place] + calls.tolerance(
                of_part, part, name
            )
            calls.near(name, whole[name][place], part[name], allowed)


@invariance
def constant_values(calls: Calls) -> None:
    """If v = c everywhere, o = c in every row that sees a key, and dq = dk = dab = 0.

    c is `parameters["constant"]`.
    """
    constant = float(calls.integer("constant", -128, 128))
    v = np.full_like(calls.arrays.v, constant)
    got, truth = calls.run(v=v), calls.truth(v=v)
    calls.count_rows(truth)
    expected = {"o": np.where(calls.sees, constant, 0.0)[..., None]}
    for name in calls.judged():
        if name != "dv":
            allowed = calls.tolerance(truth, got, name)
            calls.near(name, got[name], expected.get(name, 0.0), allowed)


@invariance
def bias_shift(calls: Calls) -> None:
    """f(ab + c[i]) = f(ab): a constant added to a row of the bias drops out of the softmax.

    c[i] is `parameters["shift"]` times -1, 0 or 1, by turns. The finite part of ab is rounded to
    sixteenths and cut at 6 first, so that every sum is exact in bfloat16 too.
    """
    if calls.arrays.ab is None:
        calls.stop("no bias")
    shift = calls.integer("shift", 1, 8)
    ab = calls.arrays.ab.astype(np.float64)
    ab = np.where(ab == -np.inf, ab, np.rint(np.clip(ab, -6, 6) * 16) / 16)
    c = shift * (np.arange(calls.case.q_len) % 3 - 1.0)
    both = [ab.astype(calls.arrays.ab.dtype), (ab + c[:, None]).astype(calls.arrays.ab.dtype)]
    plain, got = (calls.run(ab=each) for each in both)
    truth, of_got = (calls.truth(ab=each) for each in both)
    calls.count_rows(truth)
    for name in calls.judged():
        allowed = calls.tolerance(truth, plain, name) + calls.tolerance(of_got, got, name)
        calls.near(name, got[name], plain[name], allowed)


@invariance
def sum_of_dv(calls: Calls) -> None:
    """sum over j of dv[j] = sum of do[i] over the rows i that see a key: weights sum to 1."""
    if "v" not in calls.of:
        calls.stop("v is not differentiated")
    plain, truth = calls.plain(), calls.plain_truth()
    calls.count_rows(truth)
    do = np.where(calls.sees[..., None], _as_read(truth, calls.arrays.do), 0.0)
    got = plain["dv"].astype(np.float64).sum(axis=2)
    calls.near("dv", got, do.sum(axis=2), calls.tolerance(truth, plain, "dv").sum(axis=2))


@invariance
def sum_of_dab(calls: Calls) -> None:
    """sum over j of dab[i, j] = 0 in every row i: a shift of the whole row changes nothing."""
    if "ab" not in calls.of:
        calls.stop("there is no bias to differentiate")
    plain, truth = calls.plain(), calls.plain_truth()
    calls.count_rows(truth)
    got = plain["dab"].astype(np.float64).sum(axis=3)
    calls.near("dab", got, 0.0, calls.tolerance(truth, plain, "dab").sum(axis=3))


@invariance
def gradients_agree(calls: Calls) -> None:
    """dq = dab k and dk = dabᵀ q: the logits are q kᵀ + ab, so that dab is the gradient of q kᵀ."""
    if "ab" not in calls.of:
        calls.stop("there is no bias to differentiate")
    plain, truth = calls.plain(), calls.plain_truth()
    calls.count_rows(truth)
    dab, of_dab = plain["dab"].astype(np.float64), calls.tolerance(truth, plain, "dab")
    for name, other, turned in (("dq", calls.arrays.k, False), ("dk", calls.arrays.q, True)):
        ds, allowed = (x.swapaxes(2, 3) if turned else x for x in (dab, of_dab))
        factors = _as_read(truth, other)
        # Infinity times 0 is NaN, and a tolerance may be infinite.
        unknown = np.isinf(allowed).astype(np.float64) @ np.abs(factors) > 0
        of_product = np.where(np.isinf(allowed), 0.0, allowed) @ np.abs(factors)
        tolerance = calls.tolerance(truth, plain, name) + np.where(unknown, np.inf, of_product)
        calls.near(name, plain[name], ds @ factors, tolerance)


@invariance
def linearity(calls: Calls) -> None:
    """g(do) = g(do m) + g(do (1 - m)) for the gradients g and every mask m: a VJP is linear.

    m is 1 at every `parameters["period"]`-th number of do, so that no sum of cotangents rounds.
    """
    if not calls.of:
        calls.stop("nothing is differentiated")
    period = calls.integer("period", 2, 5)
    do = calls.arrays.do
    chosen = (np.indices(do.shape).sum(axis=0) % period) == 0
    parts = [np.where(chosen, do, np.zeros_like(do)), np.where(chosen, np.zeros_like(do), do)]
    plain, truth = calls.plain(), calls.plain_truth()
    calls.count_rows(truth)
    results = [calls.run(do=part) for part in parts]
    truths = [calls.truth(do=part) for part in parts]
    for name in calls.judged()[1:]:
        total = sum(each[name].astype(np.float64) for each in results)
        allowed = calls.tolerance(truth, plain, name)
        for of_part, part in zip(truths, results, strict=True):
            allowed = allowed + calls.tolerance(of_part, part, name)
        calls.near(name, plain[name], total, allowed)


def _as_read(truth: oracle.Truth, array: np.ndarray) -> np.ndarray:
    """An operand as matrix products read it: on a TPU they may round float32 first. float64."""
    exact = array.astype(np.float64)
    return BFLOAT16.round(exact) if truth.arithmetic.rounds_inputs else exact


def _other_blocks(calls: Calls) -> Blocks | None:
    fields = calls.parameters.get("other_blocks")
    if fields is None:
        return None
    if fields == GET_DEFAULT:
        return _default_blocks(calls)
    known = {*FORWARD_BLOCKS, *BACKWARD_BLOCKS}
    if not isinstance(fields, dict) or not {*FORWARD_BLOCKS} <= {*fields} <= known:
        raise CaseError(f"parameters.other_blocks: got {fields!r}; expected fields of BlockSizes")
    return Blocks(**fields)


def _default_blocks(calls: Calls) -> Blocks:
    try:
        blocks = calls.target.default_blocks(calls.case)
    # It is the target's, and whatever it raises is the finding.
    except Exception as error:
        calls.result.verdicts.append(raised(error, "get_default"))
        raise NothingToJudge from error
    if blocks is None:
        calls.stop("the target's BlockSizes has no get_default")
    said = "" if blocks.backward else "get_default lacks backward blocks"
    calls.result.verdicts.append(Verdict("call", said))
    return blocks


def _two_segments(case: Case, q_cut: int, kv_cut: int) -> Segments:
    def runs(length: int, at: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        return (((0, at), (1, length - at)),) * case.batch

    return Segments("int32", runs(case.q_len, q_cut), runs(case.kv_len, kv_cut))
