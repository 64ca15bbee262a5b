"""Where a reduction starts: small cases that keep all features of a large one, smallest first.

A fault in a loop, a mask or an index shows with two or three blocks a dimension, so that the
reported case, which may take a minute and gigabytes, need hardly ever be run.
"""

import math
from collections.abc import Iterator
from typing import Any

from properties.cases.case import Case
from properties.drawing.space import LANES, SUBLANES
from properties.shrinking.fitting import resized

_MOST_BLOCKS = 3

CHEAP_LOGITS, CHEAP_PRODUCTS = 2**18, 2**25
"""A case of so many logits, and multiplications in q kᵀ, takes less than a second or so."""


def cheap(case: Case) -> bool:
    """Whether to run a case at once, without looking for a smaller one first."""
    logits = case.batch * case.heads * case.q_len * case.kv_len
    return logits <= CHEAP_LOGITS and logits * case.head_dim <= CHEAP_PRODUCTS


def slow(case: Case) -> bool:
    """Whether a case takes so long that a person should be told."""
    logits = case.batch * case.heads * case.q_len * case.kv_len
    return logits > 16 * CHEAP_LOGITS or logits * case.head_dim > 16 * CHEAP_PRODUCTS


def starts(case: Case) -> Iterator[tuple[str, Case]]:
    """What to run until something fails, each with what it is; the case itself is the last."""
    found: list[Case] = []
    for what, each in _starts(case):
        if each not in found:
            found.append(each)
            yield what, each


def _starts(case: Case) -> Iterator[tuple[str, Case]]:
    if cheap(case):
        yield "as reported", case
        return
    batch, heads = min(case.batch, 2), min(case.heads, 2)
    narrow = min(case.head_dim, SUBLANES)
    tiny: dict[str, Any] = {
        "q_len": min(case.q_len, 2),
        "kv_len": min(case.kv_len, 3),
        "head_dim": narrow,
    }
    yield "a few rows", resized(case, batch=1, heads=1, **tiny)
    yield "a few rows in each head", resized(case, batch=batch, heads=heads, **tiny)
    rows, keys = _rows(case), _keys(case)
    square = min(case.q_len, case.kv_len, max(rows, keys))
    several: dict[str, Any] = {"batch": batch, "heads": heads, "scale_blocks": True}
    for q_len, kv_len in ((rows, keys), (square, square)):
        what = f"blocks as many, {q_len} x {kv_len}"
        yield what, resized(case, **several, q_len=q_len, kv_len=kv_len, head_dim=narrow)
    yield f"{what} in full width", resized(case, **several, q_len=square, kv_len=square)
    for parts in (8, 3):
        lengths = {name: _part_of(getattr(case, name), parts) for name in ("q_len", "kv_len")}
        what = f"a part of the rows, {lengths['q_len']} x {lengths['kv_len']}"
        yield what, resized(case, **several | lengths)
    yield "as reported", case


def _rows(case: Case) -> int:
    """The fewest queries that as many blocks, three at most, can have, and as good a tail."""
    blocks = case.block_sizes
    if blocks is None:
        return min(case.q_len, SUBLANES + 1)
    sizes = (blocks.block_q, blocks.block_q_major_dkv, blocks.block_q_dq)
    most = max(math.ceil(case.q_len / size) for size in sizes if size)
    tail = any(case.q_len % size for size in sizes if size)
    return min(case.q_len, SUBLANES * min(most, _MOST_BLOCKS) - (SUBLANES - 1) * tail)


def _keys(case: Case) -> int:
    """The fewest keys that as many major blocks of as many minor ones, two each, can have; one
    beyond whole tiles where the case has keys beyond them."""
    blocks = case.block_sizes
    if blocks is None:
        return min(case.kv_len, LANES + 1)
    pairs = (
        (blocks.block_k_major, blocks.block_k),
        (blocks.block_k_major_dkv, blocks.block_k_dkv),
        (blocks.block_k_major_dq, blocks.block_k_dq),
    )
    most = max(
        min(case.kv_len // major, 2) * min(major // minor, 2)
        for major, minor in pairs
        if major and minor
    )
    tail = case.kv_len % LANES > 0
    return min(case.kv_len, LANES * most + tail)


def _part_of(length: int, parts: int) -> int:
    """That part of a length, in whole tiles where it is more than one."""
    part = -(-length // parts)
    if parts > 1 and part > LANES:
        part = -(-part // LANES) * LANES
    return min(part, length)
