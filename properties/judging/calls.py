"""One property on one case: the calls that it makes, and how their results are held together."""

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

import oracle
from oracle.attention import Forward, forward, visibility
from oracle.rounding import BFLOAT16
from properties import engines
from properties.cases import records
from properties.cases.case import Arrays, Case, CaseError
from properties.judging import programs
from properties.judging.judge import differentiated, truth_of
from properties.judging.result import Result, attempt, engines_for
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

Outputs = dict[str, np.ndarray]
Property = Callable[[Case, Target, str], Result]

BY_ROW = frozenset({"o", "dq", "dab", "saved_o", "l", "m", "lse"})
"""Outputs of shape [batch, heads, q_len, ...]."""

STATISTICS = frozenset({"l", "m", "lse"})


class NothingToJudge(Exception):
    """Ends a property whose result says why: refused, skipped, or failed by an exception."""


def registering(
    prefix: str, properties: dict[str, Property]
) -> Callable[[Callable[["Calls"], None]], Property]:
    """A decorator that makes a property of what a function states, and enters it in `properties`
    as "prefix.name of the function"."""

    def register(states: Callable[["Calls"], None]) -> Property:
        name = f"{prefix}.{states.__name__}"

        @functools.wraps(states)
        def check(case: Case, target: Target, mode: str) -> Result:
            result = Result(name, case, mode, skipped=target.unclaimed(case) or "")
            if not result.skipped:
                with contextlib.suppress(NothingToJudge):
                    states(Calls(result, target))
                result.ran = list(dict.fromkeys(result.ran))
            return result

        properties[name] = check
        return check

    return register


class _Last:
    """The value made last. Several invariances of one case in a row start from the same call."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        if key != self._key:
            self._value = make()
            self._key = key
        return self._value


_plain_calls = _Last()
_plain_truths = _Last()


class Calls:
    """The calls of one property on one case.

    Each runs forward and backward, by all of q, k, v and the bias; forward alone where the target
    has no gradients or the blocks are for the forward only.
    """

    def __init__(self, result: Result, target: Target, arrays: Arrays | None = None) -> None:
        case = result.case
        self.result = result
        self.target = target
        self.case = replace(case, parameters={})
        self.parameters = case.parameters
        backward = case.block_sizes is None or case.block_sizes.backward
        self.of = differentiated(self.case, target) if backward else ()
        arrays = case.arrays() if arrays is None else arrays
        self.visible = _visible(case, arrays)
        self.visible_without_bias = _visible(case, arrays._replace(ab=None))
        if target.masked_rows == "any":
            # Such rows may give anything, so that their cotangent must not reach a gradient.
            do = arrays.do.copy()
            do[~self.sees] = 0
            arrays = arrays._replace(do=do)
        if target.arithmetic(case, engines_for(result.mode)[0]).rounds_inputs:
            # Matrix products read do rounded, its products with o do not: only of a do that is
            # rounded already does it hold that the two cancel.
            do = BFLOAT16.round(arrays.do.astype(np.float64)).astype(arrays.do.dtype)
            arrays = arrays._replace(do=do)
        self.arrays = arrays

    @property
    def sees(self) -> np.ndarray:
        """Rows that see a key: bool [batch, heads, q_len]."""
        return np.any(self.visible, axis=-1, keepdims=False)

    def integer(self, name: str, least: int, most: int) -> int:
        """The parameter of that name. Raises CaseError if it is no integer in these limits."""
        value = self.parameters.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise CaseError(
                f"parameters.{name}: got {value!r}; expected an integer from {least} to {most}"
            )
        return value

    def choice(self, name: str, options: Collection[str]) -> str:
        """The parameter of that name. Raises CaseError if it is none of the options."""
        return records.choice(self.parameters.get(name), f"parameters.{name}", tuple(options))

    def order(self, name: str, length: int) -> list[int]:
        """The parameter of that name. Raises CaseError if it is no permutation of that length."""
        value = self.parameters.get(name)
        if not isinstance(value, list) or sorted(value) != list(range(length)):
            raise CaseError(
                f"parameters.{name}: got {value!r}; expected a permutation of 0 to {length - 1}"
            )
        return value

    def stop(self, why: str) -> NoReturn:
        """Ends the property: this case says nothing about it."""
        self.result.skipped = why
        raise NothingToJudge

    def plain(self) -> Outputs:
        """The results of the case's own call."""
        found: Outputs
        engine = engines_for(self.result.mode)[0]
        key = (self.target, engine, self.case, self.case.folder, self.of)
        found, self.result.mode = _plain_calls.get(key, lambda: (self.run(), self.result.mode))
        if not self.result.ran:
            self.result.ran.append(self.result.mode)
        return found

    def run(self, case: Case | None = None, *, target: Target | None = None, **changed: Any) -> Any:
        """The results of a call by name: o, l and m or lse, and gradients as far as they are asked.

        case: where shapes or options differ from those of the property's own case. changed: arrays
        that replace the case's.

        Raises NothingToJudge if there are none.
        """
        case, target = case or self.case, target or self.target
        arrays = self.arrays._replace(**changed)
        of = tuple(name for name in self.of if getattr(arrays, name) is not None)
        if of:
            given = (*programs.inputs(arrays), arrays.do)
            got = self.attempt(lambda: programs.gradients(case, target, arrays, of), *given)
        else:
            given = programs.inputs(arrays)
            got = self.attempt(lambda: programs.outputs(case, target, arrays), *given)
        residuals = got.get("residuals", ())
        names = ("saved_o", "l", "m") if len(residuals) == 3 else ("saved_o", "lse")
        found = {name: each for name, each in got.items() if name != "residuals"}
        return found | dict(zip(names, residuals, strict=False))

    def run_function(self, function: Callable[..., Any], *args: Any) -> Any:
        """The results of any function that calls the target. Raises NothingToJudge if none."""
        return self.attempt(lambda: engines.trace(function, *args), *args)

    def attempt(self, trace: Callable[[], Any], *args: Any) -> Any:
        """The results of a program, as `result.attempt`. Raises NothingToJudge if none."""
        got = attempt(self.result, self.target, trace, *args)
        if got is None:
            raise NothingToJudge
        return got

    def with_arrays(self, **changed: Any) -> "Calls":
        """The calls of the same property on other arrays, whose verdicts go to the same result."""
        return Calls(self.result, self.target, self.arrays._replace(**changed))

    def truth(self, case: Case | None = None, **changed: Any) -> oracle.Truth:
        """The truth about the call that `run` makes with the same arguments."""
        with self.result.judging():
            arrays = self.arrays._replace(**changed)
            return truth_of(case or self.case, self.target, self.result.mode, arrays)

    def plain_truth(self) -> oracle.Truth:
        """The truth about the case's own call."""
        key = (self.target, self.result.mode, self.case, self.case.folder, self.of)
        found: oracle.Truth = _plain_truths.get(key, self.truth)
        return found

    def definition(self) -> Forward:
        """The forward pass of the case's own call in float64."""
        arrays = self.arrays
        segment_ids = (arrays.q_segment_ids, arrays.kv_segment_ids)
        with self.result.judging():
            return forward(
                *(arrays.q, arrays.k, arrays.v, arrays.ab),
                None if arrays.q_segment_ids is None else segment_ids,
                causal=self.case.causal,
                sm_scale=self.case.sm_scale,
            )

    def judged(self) -> list[str]:
        """The outputs that a bound is known of by itself: o and the gradients."""
        return ["o", *(f"d{name}" for name in self.of)]

    def exact(
        self,
        got: Mapping[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
        kept: np.ndarray | None = None,
    ) -> None:
        """Every output in `expected` is `got` bit for bit; +0 and -0 are alike, NaN is wrong.

        kept: bool [batch, heads, q_len], the rows to compare in outputs that have rows.
        """
        self.result.rows += self.sees.size
        for name, wanted in expected.items():
            self.result.verdicts.append(_identical(name, got[name], wanted, self._rows(name, kept)))

    def near(
        self, name: str, got: np.ndarray, expected: np.ndarray | float, allowed: np.ndarray
    ) -> None:
        """`got` is at most `allowed` from `expected`, elementwise; anything where that is infinite.

        name: of the output that is compared, or that was summed.
        """
        self.result.verdicts.append(_within(name, got, np.asarray(expected), allowed))

    def different(
        self, name: str, one: np.ndarray, other: np.ndarray, must: np.ndarray, when: str
    ) -> None:
        """Two results differ in every element of `must` (bool)."""
        same = must & (one == other)
        wrong, elements = int(same.sum()), int(must.sum())
        message = f"is the same {when} in {wrong} of {elements} elements" if wrong else ""
        self.result.verdicts.append(Verdict(name, message, elements=elements))

    def tolerance(self, truth: oracle.Truth, got: Outputs, name: str) -> np.ndarray:
        """How far from the truth an output may be: its bound, and half an ulp of a bfloat16.

        Infinite in a row that sees nothing, where the target may give anything there.
        """
        allowed = truth.bound(name) + cell(got[name])
        if name in BY_ROW and self.target.masked_rows == "any":
            allowed = np.where(truth.rows[..., None], allowed, np.inf)
        return allowed

    def repeats(
        self,
        got: Outputs,
        expected: Outputs,
        truth: Callable[[], oracle.Truth],
        *,
        reshaped: bool = False,
        moved: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    ) -> None:
        """`got` is `moved` of the results `expected`, of which `truth` gives the truth.

        Bit for bit where a kernel is given its blocks, since it computes each tile by itself. Where
        the target chooses, the choice may follow from the shapes: with `reshaped`, or a target that
        may leave everything to a compiler, the two agree within the bounds of both.
        """
        if self.case.block_sizes is not None or (self.target.strict and not reshaped):
            self.exact(got, {name: moved(array) for name, array in expected.items()})
            return
        true = truth()
        self.count_rows(true)
        for name in [name for name in self.judged() if name in got]:
            # The bounds are the same for both, since their arithmetic is.
            allowed = moved(self.tolerance(true, expected, name) + true.bound(name))
            self.near(name, got[name], moved(expected[name]), allowed + cell(got[name]))

    def count_rows(self, truth: oracle.Truth) -> None:
        """Counts the rows of a comparison within bounds."""
        self.result.rows += truth.rows.size
        self.result.untested_rows += int(truth.untested_rows.sum())

    def _rows(self, name: str, kept: np.ndarray | None) -> np.ndarray | None:
        """Which rows of an output to compare, of a shape that broadcasts; None for all of it."""
        if name not in BY_ROW:
            return None
        rows = np.ones_like(self.sees) if kept is None else kept
        if name in STATISTICS:
            return rows & self.sees
        if self.target.masked_rows == "any":
            rows = rows & self.sees
        return rows[..., None]


def cell(got: np.ndarray) -> np.ndarray:
    """How far a number that rounds to `got` may be from it: half an ulp of a bfloat16.

    Nothing for float32, in which kernels compute and whose roundings the bounds count already.
    """
    if got.dtype.name != BFLOAT16.name:
        return np.zeros(got.shape)
    return BFLOAT16.half_ulp(got.astype(np.float64))


def _visible(case: Case, arrays: Arrays) -> np.ndarray:
    segment_ids = None
    if arrays.q_segment_ids is not None:
        segment_ids = (arrays.q_segment_ids, arrays.kv_segment_ids)
    ab = None if arrays.ab is None else arrays.ab.astype(np.float64)
    lengths = (case.q_len, case.kv_len)
    seen = visibility(lengths, ab, segment_ids, case.causal)
    return np.broadcast_to(seen, (case.batch, case.heads, *lengths))


def _identical(
    name: str, got: np.ndarray, expected: np.ndarray, rows: np.ndarray | None
) -> Verdict:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return Verdict(name, f"is {_kind(got)}, must be {_kind(expected)}")
    wrong = ~(got == expected)  # so that NaN is wrong
    judged = np.ones(got.shape, bool) if rows is None else np.broadcast_to(rows, got.shape)
    wrong &= judged
    count, elements = int(wrong.sum()), int(judged.sum())
    if not count:
        return Verdict(name, elements=elements)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    nan = np.isnan(got[index]) or np.isnan(expected[index])
    what = "is or was NaN" if nan else "is not the same bit for bit"
    return Verdict(
        name,
        f"{what} in {count} of {elements} elements",
        index,
        got=float(got[index]),
        expected=float(expected[index]),
        bound=0.0,
        ratio=float("inf"),
        elements=elements,
    )


def _within(name: str, got: np.ndarray, expected: np.ndarray, allowed: np.ndarray) -> Verdict:
    if got.shape != allowed.shape:
        return Verdict(name, f"has shape {got.shape}, must have {allowed.shape}")
    got = got.astype(np.float64)
    expected = np.broadcast_to(expected, got.shape).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(got - expected)
        ratio = np.where(error == 0, 0.0, error / allowed)
    ratio = np.where(np.isnan(ratio), np.inf, np.where(np.isposinf(allowed), 0.0, ratio))
    wrong, judged = int((ratio > 1).sum()), int(np.isfinite(allowed).sum())
    index = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return Verdict(
        name,
        f"is beyond the bounds of both sides in {wrong} of {judged} elements" if wrong else "",
        index,
        got=float(got[index]),
        expected=float(expected[index]),
        bound=float(allowed[index]),
        ratio=float(ratio[index]),
        elements=judged,
    )


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
