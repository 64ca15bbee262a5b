"""Value families: what stands in q, k, v, ab and do, derived from a family's name and a seed.

Every number is the same on every platform and in every version of NumPy.  That is why nothing here
calls `numpy.random.Generator`, whose streams may change between releases, nor any function that a
mathematics library or a BLAS may round its own way (exp, log, sin, pow, sums of floats, matrix
products).  What is relied on:

- the raw 64-bit output of `numpy.random.Philox`, a counter-based generator with a published
  definition, whose stream NumPy promises to keep;
- sums of integers, which are exact;
- element by element float64 +, -, *, / and `math.sqrt`, which IEEE 754 rounds correctly.

Each tensor has streams of its own (Philox's key is the pair seed, stream), so that q, k, v, ab and
do are independent, and adding a bias or segments to a case leaves its q, k and v as they were.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

STREAMS = (
    *("q", "k", "v", "ab", "do"),
    *("q_choice", "k_choice", "ab_choice", "q_divisor", "k_divisor", "v_divisor"),
)
"""Names of the independent streams of one seed; the position is part of the key, so only append."""

TILE = 128
"""Keys in the narrowest tile of a TPU kernel: families put something of interest at its edges."""

_UNIFORMS = 8
"""16-bit integers summed for one normal number: two words of Philox."""

_UNIFORM_SUM_MEAN = _UNIFORMS * (2**16 - 1) / 2
_UNIFORM_SUM_DEVIATION = math.sqrt(_UNIFORMS * (2**32 - 1) / 12)


@dataclass(frozen=True)
class Source:
    """The random numbers of one case, and the sizes and the scale that families adapt to."""

    seed: int
    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    sm_scale: float

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.q_len, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.kv_len, self.head_dim

    @property
    def bias_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.q_len, self.kv_len

    @property
    def gain(self) -> float:
        """abs(sm_scale), by which a family divides to place its logits.

        Not below 1/100, so that logits before the scale stay moderate too (a tiny scale then gives
        logits near zero whatever the family wants); 1 for a scale of zero.
        """
        return max(abs(self.sm_scale), 0.01) if self.sm_scale != 0 else 1.0

    @property
    def sign(self) -> float:
        """Sign of sm_scale, for families that want logits of a given sign."""
        return -1.0 if self.sm_scale < 0 else 1.0

    def words(self, stream: str, count: int) -> np.ndarray:
        """`count` raw words of a stream, little endian uint64 whatever the host's order."""
        key = np.array([self.seed, STREAMS.index(stream)], dtype=np.uint64)
        return np.random.Philox(key=key).random_raw(count).astype("<u8", copy=False)

    def integers(self, stream: str, below: int, shape: tuple[int, ...]) -> np.ndarray:
        """int64 in [0, below); the bias of the remainder, below / 2**64, is of no account."""
        return (
            (self.words(stream, math.prod(shape)) % np.uint64(below))
            .astype(np.int64)
            .reshape(shape)
        )

    def uniform(self, stream: str, shape: tuple[int, ...]) -> np.ndarray:
        """float64 in (0, 1], exact multiples of 2**-53."""
        high_bits = (self.words(stream, math.prod(shape)) >> np.uint64(11)) + np.uint64(1)
        return (high_bits * 2.0**-53).reshape(shape)

    def normal(self, stream: str, shape: tuple[int, ...]) -> np.ndarray:
        """float64 of mean 0 and deviation 1, near enough to normal (Irwin-Hall, eight summands).

        A sum of eight uniforms has kurtosis 2.85 where the normal's is 3, and ends at 4.9
        deviations: `heavy_tailed` is the family for what lies beyond.
        """
        count = math.prod(shape)
        uniforms = self.words(stream, 2 * count).view("<u2").reshape(_UNIFORMS, count)
        total = uniforms.sum(axis=0, dtype=np.int64)
        return ((total - _UNIFORM_SUM_MEAN) / _UNIFORM_SUM_DEVIATION).reshape(shape)

    def signs(self, stream: str, shape: tuple[int, ...]) -> np.ndarray:
        """-1.0 or 1.0."""
        return 2.0 * self.integers(stream, 2, shape) - 1.0


Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]
"""q, k and v as float64, shapes [B, H, Sq, D], [B, H, Skv, D], [B, H, Skv, D]."""


def normal(source: Source) -> Tensors:
    """Independent, mean 0, deviation 1: logits before the scale have deviation sqrt(head_dim)."""
    return (
        source.normal("q", source.q_shape),
        source.normal("k", source.kv_shape),
        source.normal("v", source.kv_shape),
    )


def integers(source: Source) -> Tensors:
    """Integers from -3 to 3: exact products, hence many logits that are exactly equal."""
    return (
        source.integers("q", 7, source.q_shape) - 3.0,
        source.integers("k", 7, source.kv_shape) - 3.0,
        source.integers("v", 7, source.kv_shape) - 3.0,
    )


def offset_values(source: Source) -> Tensors:
    """Normal q and k, v of mean 8: the backward subtracts two nearly equal numbers."""
    q, k, v = normal(source)
    return q, k, v + 8.0


def one_hot_values(source: Source) -> Tensors:
    """v[j] is the unit vector j mod head_dim, and logits of deviation 1: o shows the weights."""
    q, k, _ = normal(source)
    v = np.zeros(source.kv_shape)
    keys = np.arange(source.kv_len)
    v[:, :, keys, keys % source.head_dim] = 1.0
    return q / (source.gain * math.sqrt(source.head_dim)), k, v


def repeated_rows(source: Source) -> Tensors:
    """Two different queries, three different keys, each repeated: exact ties, also of the max."""
    q, k, v = normal(source)
    which_q = source.integers("q_choice", min(2, source.q_len), (*source.q_shape[:3], 1))
    which_k = source.integers("k_choice", min(3, source.kv_len), (*source.kv_shape[:3], 1))
    return np.take_along_axis(q, which_q, axis=2), np.take_along_axis(k, which_k, axis=2), v


def peaked(source: Source) -> Tensors:
    """Each query is aligned with one key, whose logit is 24 above the others' mean.

    That key is the diagonal's, its neighbours', the first, the last, or at either side of a tile's
    edge.  Under a causal or segment mask the aligned key is often hidden: a leak then shows.
    """
    keys = source.signs("k", source.kv_shape)
    diagonal = np.arange(source.q_len)
    edge = TILE * np.maximum(1, source.kv_len // TILE)
    targets = np.stack(
        [diagonal, diagonal + 1, diagonal - 1]
        + [
            np.full(source.q_len, key)
            for key in (0, TILE - 1, TILE, edge - 1, edge, source.kv_len - 1)
        ]
    )
    choice = source.integers("q_choice", len(targets), source.q_shape[:3])
    target = np.clip(targets[choice, diagonal], 0, source.kv_len - 1)
    # Keys of plus and minus one have the square norm head_dim exactly, so no sum is needed here.
    height = 24.0 * source.sign / (source.gain * source.head_dim)
    q = height * np.take_along_axis(keys, target[..., None], axis=2)
    return q, keys, source.normal("v", source.kv_shape)


def heavy_tailed(source: Source) -> Tensors:
    """Normal divided by uniform, clipped at 32: most numbers small, a few dominate."""

    def tensor(stream: str, shape: tuple[int, ...]) -> np.ndarray:
        quotient = source.normal(stream, shape) / source.uniform(f"{stream}_divisor", shape)
        return np.clip(quotient, -32.0, 32.0)

    return tensor("q", source.q_shape), tensor("k", source.kv_shape), tensor("v", source.kv_shape)


def outlier_channels(source: Source) -> Tensors:
    """Two channels of q and k are 8 times, one of v 100 times as large as the others."""
    q, k, v = normal(source)
    first, second = source.head_dim // 3, source.head_dim - 1
    for channel in {first, second}:
        q[..., channel] *= 8.0
        k[..., channel] *= 8.0
    v[..., first] *= 100.0
    return q, k, v


def one_huge_key(source: Source) -> Tensors:
    """One key per head is so long that its logits have deviation 1000: it takes all or nothing."""
    q, k, v = normal(source)
    which = source.integers("k_choice", source.kv_len, (source.batch, source.heads, 1, 1))
    length = 1000.0 / (source.gain * math.sqrt(source.head_dim))
    factor = np.where(np.arange(source.kv_len)[:, None] == which, length, 1.0)
    return q, k * factor, v


def large_logits(source: Source) -> Tensors:
    """Logits of deviation 2000, hence up to about 1e4: nearly every row sees a single key."""
    q, k, v = normal(source)
    factor = math.sqrt(2000.0 / (source.gain * math.sqrt(source.head_dim)))
    return q * factor, k * factor, v


def very_negative(source: Source) -> Tensors:
    """All logits near -500, far below where exp underflows, and a few apart from one another."""
    q, k, v = normal(source)
    centre = math.sqrt(500.0 / (source.gain * source.head_dim))
    spread = 2.0 / (centre * source.gain * math.sqrt(source.head_dim))
    return -source.sign * (centre + spread * q), centre + spread * k, v


def near_underflow(source: Source) -> Tensors:
    """Weights around the smallest normal float32 and below, and v of deviation 2**-100.

    One key in four (the first always) has a logit between -1 and 0, the others between -110 and
    -80; exp(-87.3) is the smallest normal float32, exp(-103.3) the smallest of all.
    """
    q, k, v = normal(source)
    depth = 80.0 + 30.0 * source.uniform("k_choice", (*source.kv_shape[:3], 1))
    shallow = np.arange(source.kv_len)[:, None] % 4 == 0
    depth = np.where(shallow, (depth - 80.0) / 30.0, depth)
    k = -source.sign * depth / (source.gain * source.head_dim) * (1.0 + 2.0**-6 * k)
    return 1.0 + 2.0**-6 * q, k, v * 2.0**-100


FAMILIES: dict[str, Callable[[Source], Tensors]] = {
    family.__name__: family
    for family in (
        normal,
        integers,
        offset_values,
        one_hot_values,
        repeated_rows,
        peaked,
        heavy_tailed,
        outlier_channels,
        one_huge_key,
        large_logits,
        very_negative,
        near_underflow,
    )
}
"""Families of q, k and v by name, simplest first."""


def bias_normal(source: Source, dtype: str) -> np.ndarray:
    """Independent, mean 0, deviation 1."""
    return source.normal("ab", source.bias_shape)


def bias_constant(source: Source, dtype: str) -> np.ndarray:
    """2.5 everywhere: a shift of the logits that must not move o."""
    return np.full(source.bias_shape, 2.5)


def bias_inf_columns(source: Source, dtype: str) -> np.ndarray:
    """-inf in a quarter of the columns of each head (at least one column of the first)."""
    hidden = source.integers("ab_choice", 4, (source.batch, source.heads, 1, source.kv_len)) == 0
    hidden[0, 0, 0, source.seed % source.kv_len] = True
    return np.where(hidden, -np.inf, bias_normal(source, dtype))


def bias_inf_blocks(source: Source, dtype: str) -> np.ndarray:
    """-inf in whole blocks of 128 keys (of a third of the keys, where there are at most 128).

    The first block of the first head is always hidden: a kernel meets it before it has seen any
    key.  Some block is left wherever there are two.
    """
    width = TILE if source.kv_len > TILE else -(-source.kv_len // 3)
    blocks = -(-source.kv_len // width)
    hidden = source.integers("ab_choice", 2, (source.batch, source.heads, 1, blocks)) == 0
    hidden[0, 0, 0, 0] = True
    if blocks > 1:
        hidden[..., -1] &= ~hidden[..., :-1].all(axis=-1)
    columns = np.repeat(hidden, width, axis=-1)[..., : source.kv_len]
    return np.where(columns, -np.inf, bias_normal(source, dtype))


def bias_inf_rows(source: Source, dtype: str) -> np.ndarray:
    """-inf in a quarter of the rows (at least one): queries that see no key."""
    hidden = source.integers("ab_choice", 4, (source.batch, source.heads, source.q_len, 1)) == 0
    hidden[0, 0, source.seed % source.q_len, 0] = True
    return np.where(hidden, -np.inf, bias_normal(source, dtype))


def bias_lowest(source: Source, dtype: str) -> np.ndarray:
    """The most negative finite number of `dtype` at a quarter of the positions.

    Never on the diagonal (continued down the last column): every row keeps an ordinary key, also
    under a causal mask, since a row of such numbers alone is too ill-conditioned to be judged.
    A scale above 1 takes these positions to -inf, which hides them; only one below 0 is not meant,
    which makes them the largest logits.
    """
    chosen = source.integers("ab_choice", 4, source.bias_shape) == 0
    rows = np.arange(source.q_len)
    chosen[:, :, rows, np.minimum(rows, source.kv_len - 1)] = False
    return np.where(chosen, float(ml_dtypes.finfo(dtype).min), bias_normal(source, dtype))


BIAS_FAMILIES: dict[str, Callable[[Source, str], np.ndarray]] = {
    "normal": bias_normal,
    "constant": bias_constant,
    "inf_columns": bias_inf_columns,
    "inf_blocks": bias_inf_blocks,
    "inf_rows": bias_inf_rows,
    "lowest": bias_lowest,
}
"""Families of ab by name, simplest first: float64 [B, H, Sq, Skv] from a source and ab's dtype."""


def cotangent(source: Source) -> np.ndarray:
    """do, float64 [B, H, Sq, D]: normal in every family."""
    return source.normal("do", source.q_shape)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 to `dtype` ("float32" or "bfloat16"), to nearest even, by way of float32."""
    return values.astype(np.float32).astype(dtype_of(dtype))


def dtype_of(name: str) -> np.dtype:
    """NumPy's dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
