"""Covering sets are complete, legal, reproducible, small, cheap, and divide into shards."""

import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest

from oracle import contract
from properties.cases.case import BACKWARD_BLOCKS, Case
from properties.drawing import breaking, space
from properties.drawing.coverage import Pair, legal_pairs, pairs
from properties.drawing.covering import Drawn, covering_set, covering_sets, part

WHOLE = space.Space()

RESTRICTED = {
    "whole": WHOLE,
    "float32": space.Space(("float32",)),
    "no bias": space.Space(bias=False),
    "no blocks": space.Space(block_sizes=False),
    "plain": space.Space(
        ("bfloat16",), causal=False, bias=False, segments=False, block_sizes=False
    ),
    "sizes": space.Space(q_lengths=(1, 40), kv_lengths=(512,), head_dims=(8,)),
}


def refusal(case: Case, *, differentiated: bool) -> contract.Refusal | None:
    """What the contract says of a case's call."""
    arguments, blocks = breaking.call(case)
    if blocks is not None:
        refused = contract.block_sizes_refusal(blocks)
        if refused is not None:
            return refused
        arguments["block_sizes"] = SimpleNamespace(**dict.fromkeys(BACKWARD_BLOCKS) | blocks)
    return contract.call_refusal(**arguments, differentiated=differentiated)


def shown(sets: dict[str, list[Drawn]]) -> set[Pair]:
    return {pair for drawn in chain(*sets.values()) for pair in pairs(drawn.case)}


@pytest.mark.parametrize("name", RESTRICTED)
def test_every_legal_pair_is_shown(name: str) -> None:
    of = RESTRICTED[name]
    assert shown(covering_sets(of, seed=3)) == legal_pairs(of)


def test_every_legal_pair_is_shown_to_a_target_without_gradients() -> None:
    sets = covering_sets(WHOLE, seed=3, gradients=False)
    assert set(sets) == {"outputs"}
    assert shown(sets) == legal_pairs(WHOLE)


def test_the_cases_are_legal() -> None:
    sets = covering_sets(WHOLE, seed=0)

    for name, whole in sets.items():
        for drawn in whole:
            assert refusal(drawn.case, differentiated=name == "gradients") is None, drawn.case


def test_what_can_be_differentiated_is() -> None:
    """Cases for the forward alone are those that nothing else can show, and they are few."""
    sets = covering_sets(WHOLE, seed=0)

    assert len(sets["outputs"]) < len(sets["gradients"]) / 5
    for drawn in sets["outputs"]:
        assert drawn.case.block_sizes is not None
        assert not drawn.case.block_sizes.backward


@pytest.mark.parametrize(
    ("name", "of"), [("gradients", replace(WHOLE, backward=True)), ("outputs", WHOLE)]
)
def test_the_choices_draw_the_case(name: str, of: space.Space) -> None:
    for drawn in covering_sets(WHOLE, seed=0)[name]:
        choices = iter(drawn.choices)
        assert space.draw_case(lambda options, left=choices: options[next(left)], of) == drawn.case
        assert not list(choices)


def test_a_set_depends_on_its_seed_alone() -> None:
    of = RESTRICTED["plain"]
    program = (
        "from properties.drawing import covering, space;"
        f"print([d.choices for d in covering.covering_set({of!r}, 5)])".replace(
            "Space(", "space.Space("
        )
    )
    # Another process has other hashes, and so other orders of its sets.
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    mine = [drawn.choices for drawn in covering_set(of, 5)]
    assert other.stdout.strip() == str(mine), other.stderr
    assert [drawn.choices for drawn in covering_set(of, 6)] != mine


def test_each_case_adds_to_those_before_and_the_first_add_most() -> None:
    seen: set[object] = set()
    added = []
    for drawn in covering_set(WHOLE, 0):
        new = set(pairs(drawn.case)) - seen
        added.append(len(new))
        seen |= new

    assert added == sorted(added, reverse=True)
    assert added[-1] > 0


def test_sets_are_small_and_cheap() -> None:
    legal_pairs(WHOLE)
    legal_pairs(replace(WHOLE, backward=True))
    start = time.process_time()
    sets = covering_sets(WHOLE, seed=1)

    assert time.process_time() - start < 3
    # No set can be smaller than 12 value families times 9 segment layouts.
    assert 108 <= sum(map(len, sets.values())) < 2 * 108


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_shards_share_the_set_equally(shards: int) -> None:
    whole = covering_set(RESTRICTED["plain"], 0)
    parts = [part(whole, shard, shards) for shard in range(shards)]

    chosen = [drawn.choices for each in parts for drawn in each]
    assert sorted(chosen) == sorted(drawn.choices for drawn in whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
