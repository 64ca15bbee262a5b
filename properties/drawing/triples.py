"""Triples of feature values: how many a run has visited, and how many there are.

Where pairs are soon visited in full, triples tell runs of hours apart: few faults of a kernel need
more than three features at once.  A set of triples is a boolean array over the numbered atoms,
symmetric in its three axes, and that of the whole space takes about a megabyte.
"""

import base64
import functools
from collections.abc import Iterable
from itertools import combinations

import numpy as np

from properties.cases.case import Case
from properties.drawing import space
from properties.drawing.coverage import Atom, Bundle, contexts, features, legal_pairs


@functools.cache
def numbers(of: space.Space) -> dict[Atom, int]:
    """The atoms of a space, numbered; the same in every process."""
    return {atom: n for n, atom in enumerate(sorted({a for pair in legal_pairs(of) for a in pair}))}


class Triples:
    """The triples that cases have visited, of those that a space holds."""

    def __init__(self, of: space.Space | None = None) -> None:
        self._space = of or space.Space()
        self._numbers = numbers(self._space)
        self._visited = np.zeros(len(self._numbers) ** 3, bool)

    def add(self, case: Case) -> None:
        """Counts a case; one that breaks a rule never reaches a kernel and visits nothing."""
        if case.breaks is None:
            self._visited[self._places(features(case).items())] = True

    def new(self, atoms: Iterable[Atom]) -> int:
        """How many triples of these atoms no case has visited before."""
        places = self._places(atoms)
        return places.size - int(np.count_nonzero(self._visited[places]))

    @property
    def visited(self) -> int:
        """How many legal triples have been visited."""
        return int(np.count_nonzero(self._visited & legal_triples(self._space)))

    @property
    def legal(self) -> int:
        """How many triples some case of the space shows. The first call takes seconds."""
        return int(np.count_nonzero(legal_triples(self._space)))

    def missing(self) -> list[tuple[Atom, Atom, Atom]]:
        """The legal triples that no case has visited."""
        count, atoms = len(self._numbers), list(self._numbers)
        left = np.flatnonzero(legal_triples(self._space) & ~self._visited)
        first, second, third = np.unravel_index(left, (count,) * 3)
        return [
            (atoms[i], atoms[j], atoms[k]) for i, j, k in zip(first, second, third, strict=True)
        ]

    def to_data(self) -> str:
        """What was visited, as text."""
        return base64.b64encode(np.packbits(self._visited).tobytes()).decode()

    def merge(self, data: str) -> None:
        """Adds what another process visited in the same space, from its `to_data`."""
        packed = np.frombuffer(base64.b64decode(data), np.uint8)
        self._visited |= np.unpackbits(packed, count=self._visited.size).astype(bool)

    def _places(self, atoms: Iterable[Atom]) -> np.ndarray:
        """Where the triples of some atoms stand in the flattened array."""
        count, numbered = len(self._numbers), self._numbers
        ids = np.array(sorted(numbered[atom] for atom in atoms if atom in numbered), np.intp)
        first, second, third = _combinations(ids.size)
        return (ids[first] * count + ids[second]) * count + ids[third]


@functools.cache
def _combinations(count: int) -> np.ndarray:
    """Three of `count` positions, ascending: int [3, N]."""
    return np.array(list(combinations(range(count), 3)), np.intp).reshape(-1, 3).T


@functools.cache
def legal_triples(of: space.Space) -> np.ndarray:
    """Every triple of feature values that some case of a space shows, flattened: bool [atoms ** 3].

    Exact, as `legal_pairs` is, and takes some seconds.  In one context atoms of different bundles
    pair freely, so three atoms of which every two may meet may all meet.  For three of one bundle
    that is so as well, because none of its features depends on two others together.
    """
    count = len(numbers(of))
    allowed = np.zeros((count, count, -(-count // 64)), np.uint64)
    for context in contexts(of):
        shown = np.zeros(count, bool)
        apart = np.zeros((count, count), bool)
        for bundle in context:
            of_bundle, never_together = _bundle(of, bundle)
            shown |= of_bundle
            apart |= never_together
        meet = np.outer(shown, shown) & ~apart
        # The third atom's axis is 64 to a word: there are thousands of contexts.
        packed = np.packbits(meet, axis=1)
        words = np.zeros((count, allowed.shape[2] * 8), np.uint8)
        words[:, : packed.shape[1]] = packed
        partners = words.view(np.uint64)
        allowed |= np.where(meet[:, :, None], partners[:, None] & partners, np.uint64(0))
    unpacked = np.unpackbits(allowed.view(np.uint8), axis=2)[:, :, :count].astype(bool)
    number = np.arange(count)
    ascending = number[:, None] < number
    return (unpacked & ascending[:, :, None] & ascending).reshape(-1)


@functools.cache
def _bundle(of: space.Space, bundle: Bundle) -> tuple[np.ndarray, np.ndarray]:
    """The atoms of a bundle, bool [atoms], and which two of them no choice shows at once."""
    numbered = numbers(of)
    shown = np.zeros(len(numbered), bool)
    together = np.zeros((len(numbered),) * 2, bool)
    for atoms in bundle:
        ids = [numbered[atom] for atom in atoms]
        shown[ids] = True
        together[np.ix_(ids, ids)] = True
    # Nor is an atom another one than itself.
    np.fill_diagonal(together, False)
    return shown, np.outer(shown, shown) & ~together
