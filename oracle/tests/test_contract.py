"""The contract: one call that breaks each rule, calls at its very edge, and any call at all."""

from __future__ import annotations

import types
from collections import namedtuple
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.contract import (
    BACKWARD_BLOCKS,
    FORWARD_BLOCKS,
    RULES,
    Refusal,
    block_sizes_refusal,
    call_refusal,
)

SegmentIds = namedtuple("SegmentIds", "q kv")
BF16 = ml_dtypes.bfloat16
BATCH, HEADS, Q_LEN, KV_LEN, HEAD_DIM = 2, 3, 256, 384, 40

FORWARD = {"block_q": 128, "block_k_major": 384, "block_k": 128, "block_b": 1}
BACKWARD = {
    "block_q_major_dkv": 128,
    "block_k_major_dkv": 384,
    "block_k_dkv": 128,
    "block_q_dkv": 64,
    "block_k_major_dq": 384,
    "block_k_dq": 128,
    "block_q_dq": 256,
}
NO_BACKWARD = dict.fromkeys(BACKWARD_BLOCKS)


def array(shape: tuple[int, ...], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def query(dtype: Any = np.float32, **sizes: int) -> jax.ShapeDtypeStruct:
    return array((sizes.get("batch", BATCH), sizes.get("heads", HEADS), Q_LEN, HEAD_DIM), dtype)


def key(dtype: Any = np.float32, **sizes: int) -> jax.ShapeDtypeStruct:
    shape = (
        sizes.get("batch", BATCH),
        sizes.get("heads", HEADS),
        sizes.get("length", KV_LEN),
        sizes.get("head_dim", HEAD_DIM),
    )
    return array(shape, dtype)


def bias(dtype: Any = np.float32, kv_len: int = KV_LEN) -> jax.ShapeDtypeStruct:
    return array((BATCH, HEADS, Q_LEN, kv_len), dtype)


def segments(q_dtype: Any = np.int32, kv_dtype: Any = np.int32, q_len: int = Q_LEN) -> SegmentIds:
    return SegmentIds(array((BATCH, q_len), q_dtype), array((BATCH, KV_LEN), kv_dtype))


def blocks(**changes: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**FORWARD, **BACKWARD, **changes})


def refusal_of(**changes: Any) -> Refusal | None:
    call = {"q": query(), "k": key(), "v": key(), **changes}
    return call_refusal(**call)


BREAKING: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "array_type": ({"k": [[1.0]]}, TypeError, ("k",)),
    "rank": ({"v": array((2, 3, 384))}, ValueError, ("v", "(2, 3, 384)")),
    "batch_mismatch": ({"v": key(batch=5)}, ValueError, ("v", "5", "2")),
    "heads_mismatch": ({"k": key(heads=1)}, ValueError, ("k", "1", "3")),
    "head_dim_mismatch": ({"k": key(head_dim=41)}, ValueError, ("k", "41", "40")),
    "kv_len_mismatch": ({"v": key(length=385)}, ValueError, ("v", "385", "384")),
    "v_head_dim": ({"v": key(head_dim=39)}, NotImplementedError, ("v", "39", "40")),
    "empty": (
        {"k": key(length=0), "v": key(length=0)},
        ValueError,
        ("k", "(2, 3, 0, 40)"),
    ),
    "bias_shape": (
        {"ab": bias(kv_len=383)},
        ValueError,
        ("ab", "(2, 3, 256, 383)", "(2, 3, 256, 384)"),
    ),
    "segments_type": ({"segment_ids": tuple(segments())}, TypeError, ("segment_ids",)),
    "segments_shape": (
        {"segment_ids": segments(q_len=255)},
        ValueError,
        ("segment_ids.q", "(2, 255)", "(2, 256)"),
    ),
    "backward_missing": (
        {"block_sizes": blocks(**NO_BACKWARD), "differentiated": True},
        ValueError,
        BACKWARD_BLOCKS,
    ),
    "block_sizes_type": ({"block_sizes": 128}, TypeError, ("block_sizes",)),
    "q_block_align": (
        {"block_sizes": blocks(block_q_dq=100)},
        ValueError,
        ("block_q_dq", "100", "multiple of 8"),
    ),
    "q_block_exceeds": (
        {"block_sizes": blocks(block_q=264)},
        ValueError,
        ("block_q", "264", "q_len", "256"),
    ),
    "k_block_align": (
        {"block_sizes": blocks(block_k=192)},
        ValueError,
        ("block_k", "192", "multiple of 128"),
    ),
    "k_major_exceeds": (
        {"block_sizes": blocks(block_k_major_dq=512)},
        ValueError,
        ("block_k_major_dq", "512", "kv_len", "384"),
    ),
    "k_major_divides": (
        {"block_sizes": blocks(block_k_major=256)},
        ValueError,
        ("block_k_major", "256", "must divide", "384"),
    ),
    "block_b_exceeds": (
        {"block_sizes": blocks(block_b=3)},
        ValueError,
        ("block_b", "3", "2"),
    ),
    "qkv_dtype": ({"v": key(np.float16)}, TypeError, ("v", "float16")),
    "qkv_mixed": ({"k": key(BF16)}, TypeError, ("float32", "bfloat16")),
    "bias_dtype": ({"ab": bias(bool)}, TypeError, ("ab", "bool")),
    "segments_dtype": (
        {"segment_ids": segments(np.int64, np.int64)},
        TypeError,
        ("segment_ids.q", "int64"),
    ),
    "segments_mixed": (
        {"segment_ids": segments(np.int32, np.uint32)},
        TypeError,
        ("int32", "uint32"),
    ),
    "scale_type": ({"sm_scale": np.ones(())}, TypeError, ("sm_scale",)),
    "scale_value": ({"sm_scale": 1e39}, ValueError, ("sm_scale", "1e+39")),
    "flag_type": ({"causal": "no"}, TypeError, ("causal", "'no'")),
}

BREAKING_BLOCKS: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "block_type": ({"block_q": 128.0}, TypeError, ("block_q", "128.0")),
    "block_positive": ({"block_b": 0}, ValueError, ("block_b", "0")),
    "minor_exceeds": (
        {"block_k": 512},
        ValueError,
        ("block_k", "block_k_major", "must not exceed", "512", "384"),
    ),
    "minor_divides": (
        {"block_q_dkv": 48},
        ValueError,
        ("block_q_dkv", "block_q_major_dkv", "must divide", "48", "128"),
    ),
    "backward_partial": ({"block_q_dq": None}, ValueError, ("block_q_dq",)),
}


def test_every_rule_is_tested() -> None:
    of_transformations = {"second_order", "forward_mode"}
    assert BREAKING.keys() | BREAKING_BLOCKS.keys() | of_transformations == RULES.keys()


@pytest.mark.parametrize("rule", BREAKING)
def test_a_call_that_breaks_one_rule_is_refused(rule: str) -> None:
    changes, exception, words = BREAKING[rule]
    refusal = refusal_of(**changes)
    assert refusal is not None
    assert (refusal.rule, refusal.exception) == (rule, exception)
    assert set(words) == set(refusal.words)


@pytest.mark.parametrize("rule", BREAKING_BLOCKS)
def test_a_construction_that_breaks_one_rule_is_refused(rule: str) -> None:
    changes, exception, words = BREAKING_BLOCKS[rule]
    refusal = block_sizes_refusal({**FORWARD, **BACKWARD, **changes})
    assert refusal == Refusal(rule, exception, refusal.words if refusal else ())
    assert set(words) == set(refusal.words)
    assert refusal_of(block_sizes=blocks(**changes)) == refusal  # and a call with it


EDGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"q": query(BF16), "k": key(BF16), "v": key(BF16), "ab": bias()},
    "bfloat16 bias": {"ab": bias(BF16)},
    "smallest": {"q": array((1, 1, 1, 1)), "k": array((1, 1, 1, 1)), "v": array((1, 1, 1, 1))},
    "odd head_dim": {
        "q": array((1, 1, 5, 333)),
        "k": array((1, 1, 7, 333)),
        "v": array((1, 1, 7, 333)),
    },
    "numpy arrays": {"q": np.zeros((2, 3, 256, 40), np.float32)},
    "narrow ids": {"segment_ids": segments(np.int8, np.int8)},
    "unsigned ids": {"segment_ids": segments(np.uint32, np.uint32)},
    "numpy flags": {"causal": np.True_, "debug": np.False_},
    "largest scale": {"sm_scale": float(np.finfo(np.float32).max)},
    "scale that rounds down into float32": {"sm_scale": 2.0**128 - 2.0**103.5},
    "numpy scale": {"sm_scale": np.float32(-0.5)},
    "integer scale": {"sm_scale": 2},
    "zero scale": {"sm_scale": 0.0},
    "no backward blocks": {"block_sizes": blocks(**NO_BACKWARD)},
    "default blocks, differentiated": {"differentiated": True},
    "all blocks, differentiated": {"block_sizes": blocks(), "differentiated": True},
    "block_q does not divide": {"block_sizes": blocks(block_q=240, block_q_dq=104)},
    "inner query block 1": {"block_sizes": blocks(block_q_dkv=1)},
    "block_b does not divide": {
        "q": query(batch=3),
        "k": key(batch=3),
        "v": key(batch=3),
        "block_sizes": blocks(block_b=2),
    },
    "block_b is the batch": {"block_sizes": blocks(block_b=BATCH)},
    "numpy blocks": {"block_sizes": blocks(block_q=np.int64(256), block_b=np.uint8(1))},
    "lengths as blocks": {
        "q": array((1, 1, 13, 8)),
        "k": array((1, 1, 77, 8)),
        "v": array((1, 1, 77, 8)),
        "differentiated": True,
        "block_sizes": blocks(
            **{name: 13 for name in BACKWARD_BLOCKS + FORWARD_BLOCKS if "_q" in name[:7]},
            **{name: 77 for name in BACKWARD_BLOCKS + FORWARD_BLOCKS if "_k" in name[:7]},
        ),
    },
}


@pytest.mark.parametrize("edge", EDGES)
def test_a_call_at_the_edge_is_accepted(edge: str) -> None:
    assert refusal_of(**EDGES[edge]) is None


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"sm_scale": 2.0**128 - 2.0**103}, "scale_value"),
        ({"sm_scale": -np.inf}, "scale_value"),
        ({"sm_scale": np.nan}, "scale_value"),
        ({"sm_scale": 10**5000}, "scale_value"),
        ({"sm_scale": True}, "scale_type"),
        ({"sm_scale": np.True_}, "scale_type"),
        ({"sm_scale": "1"}, "scale_type"),
        ({"sm_scale": 1j}, "scale_type"),
        ({"sm_scale": None}, "scale_type"),
        ({"debug": 1}, "flag_type"),
        ({"ab": 1.0}, "array_type"),
        ({"q": array((256, 40))}, "rank"),
        ({"segment_ids": SegmentIds(None, None)}, "segments_type"),
        ({"segment_ids": np.zeros((2, 2, 256))}, "segments_type"),
        ({"segment_ids": segments(bool, bool)}, "segments_dtype"),
        ({"segment_ids": segments(np.float32, np.float32)}, "segments_dtype"),
        ({"q": query(np.float64)}, "qkv_dtype"),
        ({"ab": array((1, HEADS, Q_LEN, KV_LEN))}, "bias_shape"),
        ({"block_sizes": blocks(block_q=True)}, "block_type"),
        ({"block_sizes": blocks(block_b=None)}, "block_type"),
        ({"block_sizes": blocks(block_k=-128)}, "block_positive"),
        ({"block_sizes": blocks(block_q=-(10**5000))}, "block_positive"),
    ],
)
def test_calls_just_beyond_the_edge_are_refused(changes: dict[str, Any], rule: str) -> None:
    refusal = refusal_of(**changes)
    assert refusal is not None
    assert refusal.rule == rule


def test_types_come_before_shapes_and_shapes_before_blocks() -> None:
    broken = {"sm_scale": "1", "ab": bias(kv_len=1), "block_sizes": blocks(block_b=9)}
    rules = []
    for name, right in (("ab", None), ("sm_scale", 1.0), ("block_sizes", None)):
        refusal = refusal_of(**broken)
        assert refusal is not None
        rules.append(refusal.rule)
        broken[name] = right
    assert rules == ["bias_shape", "scale_type", "block_b_exceeds"]
    assert refusal_of(**broken) is None


def test_unknown_and_missing_block_fields_are_refused() -> None:
    assert block_sizes_refusal({**FORWARD, "block_z": 1}) == Refusal(
        "block_type", TypeError, ("block_z",)
    )
    assert block_sizes_refusal({"block_q": 8}) == Refusal(
        "block_type", TypeError, ("block_k_major",)
    )
    assert block_sizes_refusal(FORWARD) is None


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just(10**5000),
    st.lists(st.integers(), max_size=3),
    st.tuples(st.integers(), st.integers()),
    st.sampled_from(
        [
            array,
            object(),
            np.float32(1),
            np.zeros(3),
            np.array(4),
            np.array("text"),
            np.zeros((1, 2, 3, 4), complex),
            types.SimpleNamespace(shape=(1, 2, 3, 4), dtype=None),
            types.SimpleNamespace(shape=(1, 2, 3, 4), dtype="float32"),
            types.SimpleNamespace(shape="abcd", dtype=np.float32),
            types.SimpleNamespace(shape=(1, 2, 3, "d"), dtype=np.float32),
            types.SimpleNamespace(shape=(1, 2, 3, 4), dtype=jax.numpy.bfloat16),
            SegmentIds(None, 3),
            SegmentIds(np.zeros((1, 2), np.int32), np.zeros(5, object)),
            ml_dtypes.bfloat16(0.5),
        ]
    ),
    st.builds(
        array,
        st.lists(st.integers(0, 3), max_size=5).map(tuple),
        st.sampled_from([np.float32, BF16, np.float16, np.int32, bool, ml_dtypes.int4]),
    ),
)
BLOCK_VALUES = st.one_of(st.integers(-2, 300), ODD)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_call_makes_the_contract_raise(data: st.DataObject) -> None:
    call = {"q": query(), "k": key(), "v": key(), "block_sizes": blocks()}
    names = ("q", "k", "v", "ab", "segment_ids", "causal", "sm_scale", "block_sizes", "debug")
    for name in data.draw(st.lists(st.sampled_from(names), max_size=4)):
        call[name] = data.draw(ODD)
    fields = data.draw(
        st.dictionaries(st.sampled_from(FORWARD_BLOCKS + BACKWARD_BLOCKS), BLOCK_VALUES)
    )
    if data.draw(st.booleans()):
        call["block_sizes"] = blocks(**fields)
    for differentiated in (False, True):
        refusal = call_refusal(**call, differentiated=differentiated)
        assert refusal is None or refusal.rule in RULES
    refusal = block_sizes_refusal(fields)
    assert refusal is None or refusal.rule in RULES
