"""Small inputs of every kind that has ever upset an attention kernel or an error bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
Shape = tuple[int, int, int, int, int]
"""(batch, heads, q_len, kv_len, head_dim)"""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arguments of a call, and the cotangent of o; arrays of NumPy or, traced, of jax."""

    q: Any
    k: Any
    v: Any
    do: Any
    ab: Any
    segment_ids: tuple[np.ndarray, np.ndarray] | None
    causal: bool
    sm_scale: float

    def call(self) -> dict[str, Any]:
        """The arguments of `oracle.Truth`, but for the arithmetic."""
        return dataclasses.asdict(self)


Draw = tuple[np.ndarray, ...]
"""q, k and v."""


def normal(rng: np.random.Generator, shape: Shape) -> Draw:
    batch, heads, q_len, kv_len, head_dim = shape
    return (
        rng.standard_normal((batch, heads, q_len, head_dim)),
        rng.standard_normal((batch, heads, kv_len, head_dim)),
        rng.standard_normal((batch, heads, kv_len, head_dim)),
    )


def heavy_tailed(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return tuple(array / np.abs(rng.standard_normal(array.shape)) for array in (q, k, v))


def large_logits(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return q * 1e4 / np.max(np.abs(q @ np.swapaxes(k, -1, -2))), k, v


def negative_logits(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return np.abs(q) * 8, -np.abs(k) * 8, v


def peaked(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    mates = rng.integers(0, k.shape[2], q.shape[2])
    return 6 * k[:, :, mates], k, v


def one_hot_values(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    kv_len, head_dim = v.shape[2:]
    return q, k, np.broadcast_to(np.eye(kv_len, head_dim), v.shape)


def repeated_rows(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return q[:, :, :1] + 0 * q, k[:, :, :1] + 0 * k, v[:, :, :1] + 0 * v


def integers(rng: np.random.Generator, shape: Shape) -> Draw:
    return tuple(np.rint(array) for array in normal(rng, shape))


def constant_values(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return q, k, np.full_like(v, 0.7)


def mean_ten(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return q, k, v + 10


def near_underflow(rng: np.random.Generator, shape: Shape) -> Draw:
    return tuple(array * 1e-20 for array in normal(rng, shape))


def subnormal_values(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    return q, k * 1e-39, v * 1e-39


def one_huge_key(rng: np.random.Generator, shape: Shape) -> Draw:
    q, k, v = normal(rng, shape)
    k[:, :, k.shape[2] // 2] *= 300
    return q, k, v


def outlier_channels(rng: np.random.Generator, shape: Shape) -> Draw:
    draws = normal(rng, shape)
    for array in draws:
        array[..., 0] *= 40
    return draws


def deep_weights(rng: np.random.Generator, shape: Shape) -> Draw:
    """Weights on both sides of where exp is flushed, exp(-87.3)."""
    q, k, v = normal(rng, shape)
    q = np.ones_like(q)
    depths = np.linspace(0, -100, k.shape[2])[:, None] + 0 * k
    return q, depths / k.shape[3], v


VALUES: dict[str, Callable[[np.random.Generator, Shape], Draw]] = {
    family.__name__: family
    for family in (
        normal,
        heavy_tailed,
        large_logits,
        negative_logits,
        peaked,
        one_hot_values,
        repeated_rows,
        integers,
        constant_values,
        mean_ten,
        near_underflow,
        subnormal_values,
        one_huge_key,
        outlier_channels,
        deep_weights,
    )
}

LOWEST = {name: float(ml_dtypes.finfo(dtype).min) for name, dtype in DTYPES.items()}


def bias(kind: str, rng: np.random.Generator, shape: Shape) -> np.ndarray | None:
    batch, heads, q_len, kv_len, _ = shape
    ab = rng.standard_normal((batch, heads, q_len, kv_len)).astype(np.float32)
    if kind == "none":
        return None
    if kind == "infinite_columns":
        ab[..., ::3] = -np.inf
    elif kind == "infinite_rows":
        ab[:, :, ::2] = -np.inf
    elif kind == "lowest_columns":
        ab[..., ::3] = LOWEST["float32"]
    elif kind == "lowest_bfloat16_block":
        ab[..., : kv_len // 2] = LOWEST["bfloat16"]
    elif kind == "lowest_rows":
        ab[:, :, ::2] = LOWEST["float32"]
    elif kind == "garbage_where_hidden":  # the caller hides the upper triangle
        above = ~np.tril(np.ones((q_len, kv_len), bool))
        ab[..., above] = np.resize([np.nan, np.inf, -np.inf], above.sum())
    return ab


BIASES = (
    "none",
    "normal",
    "infinite_columns",
    "infinite_rows",
    "lowest_columns",
    "lowest_bfloat16_block",
    "lowest_rows",
    "garbage_where_hidden",
)

SCALES = (1.0, 0.35, -0.5, 0.0, 1e-30, 1e-40)


def inputs(
    seed: int,
    values: str,
    dtype: str,
    *,
    shape: Shape = (1, 2, 24, 40, 8),
    bias_kind: str = "none",
    sm_scale: float = 0.35,
    segments: bool = False,
) -> Inputs:
    """Reproducible inputs; causal for every other seed, and wherever the bias asks for it."""
    rng = np.random.Generator(np.random.Philox(seed))
    batch, _, q_len, kv_len, _ = shape
    q, k, v = (array.astype(DTYPES[dtype]) for array in VALUES[values](rng, shape))
    ids = None
    if segments:
        of_query, of_key = (
            rng.choice([-5, 3, 2**30], (batch, length)).astype(np.int32)
            for length in (q_len, kv_len)
        )
        ids = (of_query, of_key)
    return Inputs(
        q=q,
        k=k,
        v=v,
        do=rng.standard_normal(q.shape).astype(DTYPES[dtype]),
        ab=bias(bias_kind, rng, shape),
        segment_ids=ids,
        causal=seed % 2 == 1 or bias_kind == "garbage_where_hidden",
        sm_scale=sm_scale,
    )
