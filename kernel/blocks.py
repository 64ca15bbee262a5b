"""Block sizes: what a caller may choose, and what is chosen for one who says nothing.

A kernel works on tiles of the logits. A *major* block is what is copied from HBM to on-chip memory
at a grid step; a *minor* block is what one pass of the inner loop works on.
"""

from __future__ import annotations

import dataclasses
import operator

LANES = 128  # the last dimension of a TPU vector register
SUBLANES = 8  # the one before it, for 32-bit elements

# (minor field, major field): the minor block is a slice of the major one.
_NESTED = (
    ("block_k", "block_k_major"),
    ("block_q_dkv", "block_q_major_dkv"),
    ("block_k_dkv", "block_k_major_dkv"),
    ("block_k_dq", "block_k_major_dq"),
)
_BACKWARD = (
    "block_q_major_dkv",
    "block_k_major_dkv",
    "block_k_dkv",
    "block_q_dkv",
    "block_k_major_dq",
    "block_k_dq",
    "block_q_dq",
)
# In arrays [.., length, head_dim] blocks lie along sublanes; of a bias, keys lie along lanes.
_QUERY_BLOCKS = ("block_q", "block_q_major_dkv", "block_q_dq")
_KEY_BLOCKS = ("block_k", "block_k_dkv", "block_k_dq")
_MAJOR_KEY_BLOCKS = ("block_k_major", "block_k_major_dkv", "block_k_major_dq")


def round_up(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `length`."""
    return -(-length // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """Tile sizes of the kernels: forward, and backward (`_dkv`).

    The backward kernel makes dq together with dk and dv, from the same tiles. Blocks of a kernel
    for dq (`_dq`) are checked like the others and not used: they are there for existing callers.

    They do not change what is computed, only its rounding and its speed. Which sizes a shape allows
    is checked when the kernel is called; what can be said without a shape is checked here.

    Attributes:
      block_q: queries copied in at a forward grid step. A multiple of 8, or q_len; it need not
        divide q_len.
      block_k_major: keys copied in at a forward grid step. Divides kv_len.
      block_k: keys of a forward tile. A multiple of 128, or kv_len; divides block_k_major.
      block_b: batch rows of a forward grid step. At most batch; it need not divide it.
      block_q_major_dkv, block_q_dkv: queries copied in, and of a backward tile; all that are copied
        in are one tile where block_q_dkv is no multiple of 128.
      block_k_major_dkv, block_k_dkv: keys copied in, and of a backward tile.
      block_q_dq, block_k_major_dq, block_k_dq: not used.

    The backward fields are given all or none; without them a call cannot be differentiated.

    Raises:
      TypeError: a size is not an integer.
      ValueError: a size is below 1, a minor block exceeds or does not divide its major one, or only
        some of the backward fields are given.
    """

    block_q: int
    block_k_major: int
    block_k: int
    block_b: int

    block_q_major_dkv: int | None = None
    block_k_major_dkv: int | None = None
    block_k_dkv: int | None = None
    block_q_dkv: int | None = None

    block_k_major_dq: int | None = None
    block_k_dq: int | None = None
    block_q_dq: int | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in _BACKWARD:
                continue
            object.__setattr__(self, field.name, _positive_integer(field.name, value))
        missing = self.missing_backward_blocks
        if missing and len(missing) < len(_BACKWARD):
            raise ValueError(
                f"backward blocks are given all or none, but {', '.join(missing)} are missing; "
                "add them, or leave out every backward block"
            )
        for minor, major in _NESTED:
            inner, outer = getattr(self, minor), getattr(self, major)
            if inner is None:
                continue
            if inner > outer:
                raise ValueError(
                    f"{minor}={inner} must not exceed {major}={outer}; lower it, or raise {major}"
                )
            if outer % inner:
                raise ValueError(
                    f"{minor}={inner} must divide {major}={outer}; choose a divisor of {outer}"
                )

    @property
    def missing_backward_blocks(self) -> tuple[str, ...]:
        """The backward fields that are not given."""
        return tuple(name for name in _BACKWARD if getattr(self, name) is None)

    @property
    def has_backward_blocks(self) -> bool:
        """Whether a call with these blocks can be differentiated."""
        return not self.missing_backward_blocks

    @property
    def query_tile_dkv(self) -> int | None:
        """Queries of a backward tile: all of the major block unless it is cut in whole lanes."""
        ragged = self.block_q_dkv is not None and self.block_q_dkv % LANES
        return self.block_q_major_dkv if ragged else self.block_q_dkv

    @classmethod
    def get_default(cls, batch_size, num_heads, q_seq_len, kv_len, d_model) -> BlockSizes:
        """Blocks that are legal for a shape, forward and backward, for float32 and bfloat16.

        A kv_len that 128 does not divide allows one block only, all of it. `block_sizes=None` is
        freer: it pads such a length inside the kernel.
        """
        del batch_size, num_heads
        block_q, block_k = min(q_seq_len, 256), kv_len
        if kv_len % LANES == 0:
            block_k = next(b for b in (512, 384, 256, LANES) if kv_len % b == 0)
        if d_model > 256:
            block_q, block_k = min(block_q, LANES), block_k if kv_len % LANES else LANES
        return cls(
            block_q=block_q,
            block_k_major=block_k,
            block_k=block_k,
            block_b=1,
            block_q_major_dkv=block_q,
            block_k_major_dkv=block_k,
            block_k_dkv=block_k,
            block_q_dkv=block_q,
            block_k_major_dq=block_k,
            block_k_dq=block_k,
            block_q_dq=block_q,
        )

    def check_shape(self, batch: int, q_len: int, kv_len: int) -> None:
        """Raises ValueError where a block does not fit a call's shape."""
        if self.block_b > batch:
            raise ValueError(
                f"block_b={self.block_b} must not exceed the batch size {batch}; "
                f"choose 1 to {batch}"
            )
        for name in _QUERY_BLOCKS:
            block = getattr(self, name)
            if block is None:
                continue
            if block > q_len:
                raise ValueError(
                    f"{name}={block} must not exceed q_len={q_len}; choose {q_len} or less"
                )
            if block % SUBLANES and block != q_len:
                raise ValueError(
                    f"{name}={block} must be a multiple of {SUBLANES} or equal to q_len={q_len}; "
                    f"choose {round_up(block, SUBLANES)}, or {q_len}"
                )
        for name in _MAJOR_KEY_BLOCKS:
            block = getattr(self, name)
            if block is None:
                continue
            if block > kv_len:
                raise ValueError(
                    f"{name}={block} must not exceed kv_len={kv_len}; choose {kv_len} or less"
                )
            if kv_len % block:
                raise ValueError(
                    f"{name}={block} must divide kv_len={kv_len}; choose a divisor, "
                    "or block_sizes=None, which pads"
                )
        for name in _KEY_BLOCKS:
            block = getattr(self, name)
            if block is not None and block % LANES and block != kv_len:
                raise ValueError(
                    f"{name}={block} must be a multiple of {LANES} or equal to kv_len={kv_len}; "
                    f"choose {round_up(block, LANES)}, or {kv_len}"
                )

    def padded_to_lanes(self) -> BlockSizes:
        """These blocks with a block of all keys rounded up to whole lanes, as the kernels run them.

        Legal blocks that are no multiple of 128 hold all of a ragged kv_len, so rounding them up
        keeps every rule, and the tail that it adds is masked by position.
        """
        names = (*_KEY_BLOCKS, *_MAJOR_KEY_BLOCKS)
        sizes = {name: getattr(self, name) for name in names}
        return dataclasses.replace(
            self, **{name: round_up(b, LANES) for name, b in sizes.items() if b is not None}
        )


def _positive_integer(name: str, value) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            f"{name}={value!r} must be an integer, got {type(value).__name__}; pass a Python int"
        )
    if number < 1:
        raise ValueError(f"{name}={number} must be positive; choose 1 or more")
    return number
