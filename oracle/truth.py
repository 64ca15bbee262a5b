"""The judge: true values, their bounds, and how far a result is beyond what may be."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from oracle.attention import Backward, Forward, backward, float64, forward
from oracle.backward_bounds import backward_bounds
from oracle.forward_bounds import ForwardBounds, forward_bounds
from oracle.rounding import Arithmetic, distance


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

    def ratio(self, name: str, got: Any, m: Any = None) -> np.ndarray:
        """Distance of `got` from the truth over its bound, elementwise; above 1 it is wrong.

        The distance is to the rounding cell of `got` where `got` is bfloat16. 0 where the bound is
        infinite, infinite where `got` is NaN or differs from what must be exact. "l" is judged at
        the kernel's own `m`. Raises ValueError without it, for an output that was not computed, and
        for another shape than the truth's.
        """
        got = np.asarray(got)
        bound = self.bound(name)
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
