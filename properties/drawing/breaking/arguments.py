"""The arguments of one call before they are passed, open to be changed by a rule or an edge."""

from typing import Any, NamedTuple

import numpy as np

from properties.cases.case import Case

MAJOR_OF = {
    "block_k": "block_k_major",
    "block_q_dkv": "block_q_major_dkv",
    "block_k_dkv": "block_k_major_dkv",
    "block_k_dq": "block_k_major_dq",
}
MINOR_OF = {major: minor for minor, major in MAJOR_OF.items()}
Q_BLOCKS = ("block_q", "block_q_major_dkv", "block_q_dq")
K_MAJOR_BLOCKS = ("block_k_major", "block_k_major_dkv", "block_k_major_dq")
K_MINOR_BLOCKS = tuple(MINOR_OF[major] for major in K_MAJOR_BLOCKS)


class SegmentIds(NamedTuple):
    """Both halves of segment_ids, to be passed as the target's own SegmentIds(q, kv)."""

    q: Any
    kv: Any


class Call:
    """The arguments of a case's call, and the fields of its BlockSizes (none: block_sizes=None)."""

    def __init__(self, case: Case) -> None:
        arrays = case.arrays()
        self.case = case
        self.arguments: dict[str, Any] = {
            "q": arrays.q,
            "k": arrays.k,
            "v": arrays.v,
            "ab": arrays.ab,
            "segment_ids": None,
            "causal": case.causal,
            "sm_scale": case.sm_scale,
            "debug": False,
        }
        if arrays.q_segment_ids is not None:
            self.arguments["segment_ids"] = SegmentIds(arrays.q_segment_ids, arrays.kv_segment_ids)
        self.blocks: dict[str, Any] = {}
        if case.block_sizes is not None:
            self.blocks.update(case.block_sizes.fields())

    def bias(self) -> np.ndarray:
        """The call's ab; zeros in float32 if the case has none."""
        case = self.case
        if self.arguments["ab"] is None:
            shape = (case.batch, case.heads, case.q_len, case.kv_len)
            self.arguments["ab"] = np.zeros(shape, np.float32)
        return self.arguments["ab"]

    def segment_ids(self) -> SegmentIds:
        """The call's segment ids; all 0 in int32 if the case has none."""
        case = self.case
        if self.arguments["segment_ids"] is None:
            self.arguments["segment_ids"] = SegmentIds(
                np.zeros((case.batch, case.q_len), np.int32),
                np.zeros((case.batch, case.kv_len), np.int32),
            )
        return self.arguments["segment_ids"]

    def whole_blocks(self, *, backward: bool = True) -> None:
        """Makes every block as large as what it divides: legal at any lengths."""
        q_len, kv_len = self.case.q_len, self.case.kv_len
        self.blocks = {"block_q": q_len, "block_k_major": kv_len, "block_k": kv_len, "block_b": 1}
        if backward:
            self.blocks |= {name: q_len for name in Q_BLOCKS} | {"block_q_dkv": q_len}
            self.blocks |= {name: kv_len for name in K_MAJOR_BLOCKS + K_MINOR_BLOCKS}

    def set_block(self, field: str, size: int) -> None:
        """Sets a block, and its minor block to the same, in a call with every block explicit."""
        if "block_q_dq" not in self.blocks:
            self.whole_blocks()
        self.blocks[field] = size
        if field in MINOR_OF:
            self.blocks[MINOR_OF[field]] = size


def resized(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """The array cut to `size` along an axis, or repeated up to it."""
    return np.take(array, np.arange(size) % array.shape[axis], axis=axis)
