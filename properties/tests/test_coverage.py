"""Pairs visited are counted right, and the pairs said to be legal are those that can occur."""

import random
import time

import pytest

from properties.cases.case import Bias, Case, Segments
from properties.drawing import coverage, space
from properties.drawing.coverage import Coverage, features, legal_pairs, pairs

SMALL = space.Space(q_lengths=(1, 2, 9, 128), kv_lengths=(1, 8, 129, 256), head_dims=(1, 8))


def sample(count: int, of: space.Space) -> list[Case]:
    chosen = random.Random(2)
    return [space.draw_case(chosen.choice, of) for _ in range(count)]


def test_features_of_a_plain_case() -> None:
    assert features(Case(1, 2, 1, 129, 64)) == {
        "batch": "1",
        "heads": "2",
        "q_len": "1",
        "kv_len": "one above tiles",
        "lengths": "q shorter",
        "head_dim": "short",
        "dtype": "float32",
        "causal": "False",
        "scale": "one",
        "values": "normal",
        "bias": "none",
        "segments": "none",
        "blocks": "none",
    }


@pytest.mark.parametrize(
    ("length", "name"),
    [
        *((1, "1"), (2, "short"), (126, "short"), (127, "one below tiles"), (128, "one tile")),
        *((129, "one above tiles"), (200, "ragged"), (255, "one below tiles"), (256, "tiles")),
    ],
)
def test_lengths_are_classed_by_tiles(length: int, name: str) -> None:
    assert coverage.length_class(length) == name


def test_segments_are_recognised() -> None:
    """Whatever layout and style are asked for are seen in the case that comes of it."""
    chosen = random.Random(0)
    for q_len, kv_len, batch in (
        (2, 3, 1),
        (3, 2, 2),
        (5, 7, 3),
        (129, 40, 2),
        (1, 9, 2),
        (8, 8, 1),
    ):
        for layout in space.segment_layouts(q_len, kv_len, batch):
            for _ in range(40):
                drawn = space.draw_segments(chosen.choice, layout, q_len, kv_len, batch)
                assert coverage.segment_layout(drawn) == layout
                assert coverage.segment_style(drawn) in space.segment_styles(layout, drawn.dtype)


def test_the_legal_pairs_are_those_that_occur() -> None:
    """A small space is visited in full: no pair beyond the legal ones, and none of them missing."""
    visited = {pair for case in sample(12_000, SMALL) for pair in pairs(case)}

    assert visited == legal_pairs(SMALL)


def test_nearly_all_of_the_whole_space_is_reached() -> None:
    legal = legal_pairs(space.Space())
    visited = {pair for case in sample(5000, space.Space()) for pair in pairs(case)}

    assert visited <= legal
    assert len(visited) > 0.99 * len(legal)


def test_restrictions_lessen_what_is_legal() -> None:
    plain = space.Space(("float32",), causal=False, bias=False, segments=False, block_sizes=False)
    legal = legal_pairs(plain)

    assert legal < legal_pairs(space.Space())
    assert legal == {pair for case in sample(8000, plain) for pair in pairs(case)}


def test_counting_the_legal_pairs_is_cheap() -> None:
    start = time.process_time()
    legal_pairs.__wrapped__(space.Space())
    assert time.process_time() - start < 3


def test_coverage_counts_legal_pairs_once() -> None:
    seen = Coverage()
    case = Case(1, 1, 1, 1, 1)
    seen.add(case)
    seen.add(case)

    number = len(features(case))
    assert len(seen.visited) == number * (number - 1) // 2
    assert seen.visited <= seen.legal


def test_cases_that_break_a_rule_visit_nothing() -> None:
    seen = Coverage()
    seen.add(Case(1, 1, 1, 1, 1, breaks="rank", parameters={"argument": "q", "dimensions": 3}))
    assert not seen.visited


def test_cases_outside_the_space_count_for_what_they_share_with_it() -> None:
    seen = Coverage(SMALL)
    seen.add(
        Case(
            *(9, 1, 128, 8, 8),
            bias=Bias("bfloat16", "inf_rows"),
            segments=Segments("int8", (((0, 128),),) * 9, (((0, 8),),) * 9),
        )
    )
    assert seen.visited <= seen.legal
    assert (("bias", "inf_rows"), ("segments", "one")) in seen.visited


def test_what_another_process_visited_is_added() -> None:
    here, there = Coverage(), Coverage()
    first, second = sample(2, space.Space())
    here.add(first)
    there.add(second)

    here.merge(there.to_data())

    assert here.visited == set(pairs(first)) | set(pairs(second))
