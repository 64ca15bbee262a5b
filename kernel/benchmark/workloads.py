"""What is measured: shapes, passes, and the kernels that are compared."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as upstream

import kernel

# "train" is the forward pass and the gradients of q, k, v, and of the bias if there is one, with
# all that XLA adds to the kernels.
PASSES = ("forward", "train")

# Products of two matrices for each pair of a query and a key that it sees: q kᵀ and p v, and again
# q kᵀ, and do vᵀ, pᵀ do, ds k, dsᵀ q.
_PRODUCTS = {"forward": 2, "train": 2 + 5}

# Square blocks that upstream's kernel may be given. The default is 128; of the others that fit the
# memory the largest was the fastest, wherever several were compared.
DEFAULT_BLOCK = 128
LARGER_BLOCKS = (1024, 512, 256)


class Shape(NamedTuple):
    """Arguments of a call of self-attention; the batch is 1, and there are 8 heads.

    Attributes:
      length: of the queries and of the keys.
      bias: whether there is one, in float32.
      segments: whether there are segment ids.
    """

    length: int
    head_dim: int = 128
    dtype: str = "bfloat16"
    causal: bool = True
    bias: bool = False
    segments: bool = False

    def useful_products(self, which: str) -> int:
        """Multiplications that a pass needs, of the pairs that causal order leaves."""
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
        return _PRODUCTS[which] * _HEADS * pairs * self.head_dim


_HEADS = 8

SHAPES = {
    "2048": Shape(2048),
    "8192": Shape(8192),
    "1024": Shape(1024),
    "full": Shape(2048, causal=False),
    "d64": Shape(2048, head_dim=64),
    "d256": Shape(2048, head_dim=256),
    "bias": Shape(2048, bias=True),
    "segments": Shape(2048, segments=True),
    "float32": Shape(2048, dtype="float32"),
}


def build(shape: Shape, which: str, block: int | None) -> tuple[Callable[..., Any], list[Any]]:
    """A function to compile, and the shapes of its arguments.

    Args:
      shape, which: one of `SHAPES` and of `PASSES`.
      block: the size of upstream's blocks, None for the project's kernel with its own choice.
    """
    tensor = jax.ShapeDtypeStruct((1, _HEADS, shape.length, shape.head_dim), shape.dtype)
    inputs = [tensor] * 3
    if shape.bias:
        inputs.append(jax.ShapeDtypeStruct((1, _HEADS, shape.length, shape.length), jnp.float32))
    ids = [jax.ShapeDtypeStruct((1, shape.length), jnp.int32)] * (2 * shape.segments)
    attend = functools.partial(_attend, shape.causal, block)
    if which == "forward":
        return lambda inputs, ids: attend(ids, *inputs), [inputs, ids]

    def train(inputs, ids, cotangent):
        output, gradients = jax.vjp(functools.partial(attend, ids), *inputs)
        return output, gradients(cotangent)

    return train, [inputs, ids, tensor]


def _attend(causal, block, ids, q, k, v, ab=None):
    if block is None:
        segments = kernel.SegmentIds(*ids) if ids else None
        return kernel.flash_attention(q, k, v, ab, segments, causal=causal)
    return upstream.flash_attention(
        *(q, k, v, ab),
        segment_ids=upstream.SegmentIds(*ids) if ids else None,
        causal=causal,
        block_sizes=_square(block),
    )


def _square(block: int) -> upstream.BlockSizes:
    names = [
        *("block_q", "block_k_major", "block_k"),
        *("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv"),
        *("block_k_major_dq", "block_k_dq", "block_q_dq"),
    ]
    return upstream.BlockSizes(**dict.fromkeys(names, block), block_b=1)
