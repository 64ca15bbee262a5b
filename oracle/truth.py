"""The judge: true values, their bounds, and how far a result is beyond what may be."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from oracle import variance
from oracle.attention import Backward, Forward, backward, float64, forward
from oracle.backward_bounds import backward_bounds
from oracle.forward_bounds import ForwardBounds, forward_bounds
from oracle.rounding import BFLOAT16, Arithmetic, distance


class Truth:
    """What a call must give, and how far from it a correct kernel may be.

    q, do: [B, H, Sq, D]; k, v: [B, H, Skv, D]; ab: [B, H, Sq, Skv]; segment_ids: a pair of integer
    arrays ([B, Sq], [B, Skv]) or an object with fields `q` and `kv`. Arrays of any floating dtype,
    bfloat16 included; all arithmetic is float64. `arithmetic` says which roundings are allowed.

    residuals: the (o, l, m) or (o, lse) that the kernel saved. The gradients are then those that
    follow from them, and the bounds those of the backward pass alone. Raises ValueError if they
    come without `do`.
    """

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any,
        ab: Any = None,
        segment_ids: Any = None,
        do: Any = None,
        *,
        causal: bool = False,
        sm_scale: float = 1.0,
        arithmetic: Arithmetic,
        residuals: tuple[Any, ...] | None = None,
    ) -> None:
        if residuals is not None and do is None:
            raise ValueError("residuals are given without do: pass the cotangent of o as well")
        self.arithmetic = arithmetic
        self.residuals = residuals
        self._do = do
        self._forward: Forward = forward(
            q,
            k,
            v,
            ab,
            segment_ids,
            causal=causal,
            sm_scale=sm_scale,
            rounds_inputs=arithmetic.rounds_inputs,
        )

    def given(self, residuals: tuple[Any, ...], do: Any = None) -> Truth:
        """The truth of the backward pass conditional on a kernel's residuals.

        Shares the forward, and its bounds, with this one. `do` defaults to this one's.
        """
        other = Truth.__new__(Truth)
        other.arithmetic, other.residuals = self.arithmetic, residuals
        other._do = self._do if do is None else do
        if other._do is None:
            raise ValueError("residuals are given without do: pass the cotangent of o as well")
        other._forward = self._forward
        other._forward_bounds = self._forward_bounds
        return other

    @cached_property
    def _backward(self) -> Backward:
        return backward(
            self._forward,
            self._do,
            self.residuals,
            rounds_inputs=self.arithmetic.rounds_inputs,
        )

    @property
    def _given_backward(self) -> Backward | None:
        return None if self._do is None else self._backward

    @cached_property
    def _forward_bounds(self) -> ForwardBounds:
        return forward_bounds(self._forward, self.arithmetic)

    @cached_property
    def _backward_bounds(self) -> dict[str, np.ndarray]:
        # Residuals of a faulty kernel may be infinite or NaN, and so are these bounds then.
        with np.errstate(over="ignore", invalid="ignore"):
            return backward_bounds(
                self._forward,
                self._backward,
                self._forward_bounds,
                self.arithmetic,
                conditional=self.residuals is not None,
            )

    @property
    def visible(self) -> np.ndarray:
        """Which keys each query sees: bool [B, H, Sq, Skv]."""
        return np.broadcast_to(self._forward.visible, self._forward.depth.shape)

    @property
    def rows(self) -> np.ndarray:
        """Rows that see a key: bool [B, H, Sq]."""
        return self._forward.rows[..., 0]

    @property
    def untested_rows(self) -> np.ndarray:
        """Rows too ill-conditioned for a bound, which is infinite there: bool [B, H, Sq]."""
        return self._forward_bounds.untested[..., 0]

    @cached_property
    def _forward_values(self) -> dict[str, np.ndarray]:
        true = self._forward
        return {
            "o": true.o,
            "l": np.where(true.rows, true.total, 0.0)[..., 0],
            "m": np.where(true.rows, true.m, -np.inf)[..., 0],
            "lse": np.where(true.rows, true.m + np.log(true.total), -np.inf)[..., 0],
        }

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """The true outputs by name: o, l, m, lse and, if there is a cotangent, dq, dk, dv, dab.

        A row that sees nothing has o = 0, l = 0 and m = lse = -inf.
        """
        if self._do is None:
            return self._forward_values
        grads = self._backward
        gradients = {"dq": grads.dq, "dk": grads.dk, "dv": grads.dv, "dab": grads.ds}
        return self._forward_values | gradients

    def value(self, name: str) -> np.ndarray:
        """One of `values`; gradients are computed only if one is asked for.

        Raises ValueError for an output that is not among them.
        """
        values = self._forward_values if name in self._forward_values else self.values
        if name not in values:
            raise ValueError(f"output {name!r} is unknown here; known: {', '.join(values)}")
        return values[name]

    def bound(self, name: str) -> np.ndarray:
        """Bound on one output, of its shape: infinite where nothing can be said, 0 where the
        result must be exact. The bound on l holds at the kernel's own m. Raises ValueError for an
        output that was not computed.
        """
        self.value(name)
        forward_half = self._forward_bounds.outputs
        return forward_half[name] if name in forward_half else self._backward_bounds[name]

    @cached_property
    def bounds(self) -> dict[str, np.ndarray]:
        """`bound` of every output in `values`."""
        return {name: self.bound(name) for name in self.values}

    @property
    def well_conditioned(self) -> bool:
        """Whether no weight can be off by half in its logarithm, as chance errors have it."""
        return bool(np.max(self._forward_bounds.growth, initial=0.0) < np.expm1(0.5))

    @cached_property
    def _forward_variances(self) -> dict[bool, variance.ForwardVariance]:
        """By whether they are the likely ones, or the predicted."""
        return {
            likely: variance.forward_variance(
                self._forward, self._forward_bounds, variance.Roundings(self.arithmetic, likely)
            )
            for likely in (False, True)
        }

    @cached_property
    def _backward_variances(self) -> dict[bool, dict[str, np.ndarray]]:
        return {
            likely: variance.backward_variance(
                self._forward,
                self._backward,
                self._forward_bounds,
                self._forward_variances[likely],
                variance.Roundings(self.arithmetic, likely),
                conditional=self.residuals is not None,
            )
            for likely in (False, True)
        }

    def _variance(self, name: str, *, likely: bool) -> np.ndarray:
        self.value(name)
        forward_half = self._forward_variances[likely].outputs
        return (
            forward_half[name] if name in forward_half else self._backward_variances[likely][name]
        )

    def predicted_spread(self, name: str, dtype: str) -> np.ndarray:
        """Root mean square error that a correct kernel is expected to have in each element of an
        output of that dtype; 0 where a result must be exact, infinite where nothing is known. For
        data without ties. Raises ValueError for an output that was not computed.
        """
        found = self._variance(name, likely=False)
        if dtype == BFLOAT16.name:
            by = variance.Roundings(self.arithmetic, likely=False)
            found = found + by.of_cast(self.value(name))
        bound = self.bound(name)
        known = np.where(np.isfinite(bound), np.sqrt(found), np.inf)
        return np.where(bound == 0, 0.0, known)

    def likely_bound(self, name: str) -> np.ndarray:
        """`bound`, or what roundings that are independent exceed with probability 2.5e-14 where
        that is less: for data without ties, in rows that are well conditioned. `bound` where an
        arithmetic has errors that are not independent. Raises as `bound`.
        """
        bound = self.bound(name)
        if variance.is_rough(self.arithmetic):
            return bound
        likely = np.sqrt(self._variance(name, likely=True))
        in_common = variance.in_common(self.arithmetic).get(name, 0.0)
        if in_common:
            likely = likely + in_common * np.abs(self.value(name))
        likely = likely + variance.flushing(self._forward, self._given_backward)
        return np.where(np.isfinite(bound), np.minimum(bound, likely), bound)

    def ratio(
        self, name: str, got: Any, m: Any = None, *, bound: np.ndarray | None = None
    ) -> np.ndarray:
        """Distance of `got` from the truth over its bound, elementwise; above 1 it is wrong.

        The distance is to the rounding cell of `got` where `got` is bfloat16. 0 where the bound is
        infinite, infinite where `got` is NaN or differs from what must be exact. "l" is judged at
        the kernel's own `m`. Raises ValueError without it, for an output that was not computed, and
        for another shape than the truth's. `bound` takes the place of `self.bound(name)`.
        """
        got = np.asarray(got)
        bound = self.bound(name) if bound is None else bound
        truth = self.value(name)
        if got.shape != truth.shape:
            raise ValueError(f"{name} has shape {got.shape}, its truth {truth.shape}")
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            scaled = bound
            if name == "l":
                if m is None:
                    raise ValueError("l can only be judged at the kernel's own m: pass m as well")
                # Clipped: an m so far off fails its own check, and here only has to stay a number.
                exponent = self.value("m") - float64(m)
                at_own_m = np.exp(np.clip(exponent, -600, 600))
                truth, scaled = truth * at_own_m, bound * at_own_m
            error = distance(truth, got)
            ratio = np.where(error == 0, 0.0, error / scaled)
        ratio = np.where(np.isposinf(bound), 0.0, ratio)
        return np.where(np.isnan(ratio) | np.isnan(float64(got)), np.inf, ratio)
