"""The blocks of a call that names none.

Large blocks are fast: a grid step costs some hundred cycles beside its tiles, and the more tiles a
step has, the more the compiler finds to do while one of them waits. So a block is as long as
on-chip memory allows, up to 2048. Longer ones make no difference that pays for compiling them: the
tiles of a step are written out one by one.

With a bias a kernel waits for it to be copied: blocks are 1024 at most, of which causal order hides
more from end to end, and what is hidden is not copied.

Of that length, the blocks of a sequence are equally long, so that the last has little to spare.
"""

from __future__ import annotations

from kernel.blocks import LANES, SUBLANES, BlockSizes, round_up

# Every generation has so much on-chip memory, in bytes.
LEAST_VMEM = 16 * 2**20

# Blocks up to so many queries or keys are one tile; longer ones are cut into tiles of 256, as wide
# as the widest matrix unit.
_WHOLE = 512
TILE = 256


def choose_blocks(
    q_len: int,
    kv_len: int,
    head_dim: int,
    itemsize: int,
    *,
    bias: bool,
    vmem_bytes: int | None,
) -> BlockSizes:
    """The blocks of a call with `block_sizes=None`, in whole lanes; they need not divide kv_len.

    Args:
      q_len, kv_len, head_dim: of the call.
      itemsize: bytes of an element of q, k and v.
      bias: whether there is one.
      vmem_bytes: what a kernel may take of on-chip memory, None if that is not known.
    """
    shape = (q_len, kv_len, head_dim, itemsize, bias)
    limit = vmem_bytes or LEAST_VMEM
    # An eighth is the compiler's, and a quarter of the backward's is for dq.
    forward = _longest(_forward_bytes, shape, limit - limit // 8)
    backward = _longest(_backward_bytes, shape, limit - limit // 8 - limit // 4)
    block_q, block_q_dkv = _block_q(q_len, forward), _block_q(q_len, backward)
    # The same for both, so that one padded length is whole blocks of either.
    block_k = _equal_parts(kv_len, min(forward, backward))
    return BlockSizes(
        block_q=block_q,
        block_k_major=block_k,
        block_k=block_k if block_k <= _WHOLE else TILE,
        block_b=1,
        block_q_major_dkv=block_q_dkv,
        block_k_major_dkv=block_k,
        block_k_dkv=block_k,
        block_q_dkv=block_q_dkv,
        block_k_major_dq=block_k,
        block_k_dq=block_k,
        block_q_dq=block_q_dkv,
    )


def query_tile(block_q: int) -> int:
    """How many queries of a block make a tile."""
    return block_q if block_q <= _WHOLE else TILE


def _longest(needed, shape: tuple[int, int, int, int, bool], limit: int) -> int:
    """The longest that blocks may be, for what is needed not to exceed a limit in bytes."""
    q_len, kv_len, head_dim, itemsize, bias = shape
    row = round_up(head_dim, LANES)
    for longest in (1024, 512, 256, LANES) if bias else (2048, 1024, 512, 256, LANES):
        blocks = _block_q(q_len, longest), _equal_parts(kv_len, longest)
        if needed(*blocks, row, itemsize, bias) <= limit:
            break
    return longest


def _block_q(q_len: int, longest: int) -> int:
    return q_len if q_len <= longest else _equal_parts(q_len, longest)


def _equal_parts(length: int, longest: int) -> int:
    """The length of a block when as few as possible are equally long."""
    block = -(-length // -(-length // longest))
    return round_up(block, TILE if block > _WHOLE else LANES)


def _forward_bytes(block_q: int, block_k: int, row: int, itemsize: int, bias: bool) -> int:
    """What the forward kernel holds in on-chip memory.

    Blocks of inputs and outputs are held twice, so that one is copied while the other is used.
    """
    block_q = round_up(block_q, SUBLANES)
    tile_q, tile_k = query_tile(block_q), query_tile(block_k)
    tiles = min(12, -(-block_q // tile_q) * (block_k // tile_k))
    blocks = 2 * (2 * block_q + 2 * block_k) * row * itemsize
    logits = 3 * tiles * tile_q * tile_k * 4
    return blocks + 2 * block_q * row * 4 + logits + bias * 2 * block_q * block_k * 4


def _backward_bytes(block_q: int, block_k: int, row: int, itemsize: int, bias: bool) -> int:
    """What the backward kernel holds in on-chip memory, but for dq."""
    block_q = round_up(block_q, SUBLANES)
    blocks = 2 * (4 * block_q + 4 * block_k) * row * itemsize
    logits = 4 * query_tile(block_q) * block_k * 4
    gathered = 2 * block_k * row * 4
    return blocks + gathered + logits + bias * 4 * block_q * block_k * 4
