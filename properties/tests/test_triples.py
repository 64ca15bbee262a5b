"""Triples are counted right, and those said to be legal are those that can occur."""

import random
from itertools import combinations

from properties.cases.case import Case
from properties.drawing import space
from properties.drawing.coverage import Atom, contexts, features
from properties.drawing.covering import draw
from properties.drawing.triples import Triples, legal_triples, numbers

SMALL = space.Space(q_lengths=(1, 9), kv_lengths=(8, 256), head_dims=(8,))


def sample(count: int, of: space.Space) -> list[Case]:
    chosen = random.Random(4)
    return [draw(of, chosen).case for _ in range(count)]


def test_visited_triples_are_those_that_cases_show() -> None:
    seen = Triples(SMALL)
    shown: set[tuple[Atom, ...]] = set()
    for case in sample(30, SMALL):
        shown |= set(combinations(sorted(features(case).items()), 3))
        seen.add(case)
        seen.add(case)
        assert seen.new(features(case).items()) == 0

    assert seen.visited == len(shown)
    assert set(seen.missing()).isdisjoint(shown)
    assert seen.visited + len(seen.missing()) == seen.legal


def test_new_counts_what_a_case_would_add() -> None:
    seen = Triples(SMALL)
    for case in sample(30, SMALL):
        before, new = seen.visited, seen.new(features(case).items())
        seen.add(case)
        assert seen.visited == before + new


def test_no_case_of_the_whole_space_shows_more() -> None:
    of = space.Space()
    seen = Triples(of)
    shown: set[tuple[Atom, ...]] = set()
    for case in sample(1500, of):
        shown.update(combinations(sorted(features(case).items()), 3))
        seen.add(case)

    assert seen.visited == len(shown)
    assert seen.visited > 0.7 * seen.legal


def test_atoms_of_a_bundle_that_pair_also_meet_in_threes() -> None:
    """What `legal_triples` rests on."""
    for bundle in {bundle for context in contexts(space.Space()) for bundle in context}:
        met = {pair for joint in bundle for pair in combinations(sorted(joint), 2)}
        all_three = {three for joint in bundle for three in combinations(sorted(joint), 3)}
        atoms = sorted({atom for joint in bundle for atom in joint})
        for three in combinations(atoms, 3):
            if all(pair in met for pair in combinations(three, 2)):
                assert three in all_three


def test_cases_that_break_a_rule_visit_nothing() -> None:
    seen = Triples()
    seen.add(Case(1, 1, 1, 1, 1, breaks="rank", parameters={"argument": "q", "dimensions": 3}))
    assert seen.visited == 0


def test_what_another_process_visited_is_added() -> None:
    here, there, both = Triples(SMALL), Triples(SMALL), Triples(SMALL)
    first, second = sample(2, SMALL)
    here.add(first)
    there.add(second)
    both.add(first)
    both.add(second)

    here.merge(there.to_data())

    assert here.missing() == both.missing()


def test_a_space_of_few_features_has_few_triples() -> None:
    plain = space.Space(("float32",), causal=False, bias=False, segments=False, block_sizes=False)
    assert legal_triples(plain).size == len(numbers(plain)) ** 3
    assert 0 < Triples(plain).legal < Triples().legal
