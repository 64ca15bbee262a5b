"""A covering set: few cases in which every pair of feature values that may meet does.

Out of thousands of random cases, completed until every legal pair occurs in one of them, the case
with the most pairs not yet visited is taken, again and again, until none is left: some 170 cases
for over 5,000 pairs, where random cases need 20,000.  What is taken is not only the case but the
choices that draw it, so that Hypothesis can be made to draw it (see `guide`), and then shrink it.

Libraries for covering arrays were measured on features as factors.  What a case may hold follows
from code (lengths decide which blocks and segments there are), which they can only ask of partial
rows: allpairspy 2.5 stopped at 3,797 of the 5,257 pairs, covertable 3.2 had nothing after 110
CPU-seconds, and neither would give cases.
"""

import functools
import heapq
import random
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from properties.cases.case import Case
from properties.drawing import space
from properties.drawing.coverage import Atom, Pair, features, legal_pairs

T = TypeVar("T")

# A larger pool gives a smaller set: some 210 cases from 3,000, 170 from 12,000, 160 from 20,000.
_POOL, _DRAWS_PER_PAIR = 12_000, 30


@dataclass(frozen=True)
class Drawn:
    """A case, and the choices that draw it: an index into each list of options, in order."""

    case: Case
    choices: tuple[int, ...]

    @functools.cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """The feature values that the case shows."""
        return tuple(features(self.case).items())


def draw(of: space.Space, chosen: random.Random, sizes: Sequence[Collection[int]] = ()) -> Drawn:
    """A case of a space by uniform choices; the first ones, `space.DIMENSIONS`, out of `sizes`."""
    choices: list[int] = []

    def choose(options: Sequence[T]) -> T:
        indices: Sequence[int] = range(len(options))
        if len(choices) < len(sizes):
            wanted = sizes[len(choices)]
            indices = [index for index in indices if options[index] in wanted] or indices
        # Faster than random.choice, and thousands are drawn.
        index = indices[int(chosen.random() * len(indices))]
        choices.append(index)
        return options[index]

    case = space.draw_case(choose, of)
    return Drawn(case, tuple(choices))


def redrawn(of: space.Space, choices: Iterable[int]) -> Drawn:
    """The case of a space that these choices draw, which another process has made."""
    made = tuple(choices)
    left = iter(made)
    return Drawn(space.draw_case(lambda options: options[next(left)], of), made)


def covering_sets(of: space.Space, seed: int, *, gradients: bool = True) -> dict[str, list[Drawn]]:
    """Cases by property, which together show every legal pair of a space.

    The gradients property checks the forward too, so it gets all that can be differentiated; what
    is left to the outputs property are the pairs that only block sizes of the forward alone show.
    With gradients False, everything is.  Every list begins with the cases that visit most.  The
    choices are those of `space.draw_case` in the space that the property's strategy draws from:
    the given one, for gradients that with backward blocks.
    """
    if not gradients:
        return {"outputs": covering_set(of, seed)}
    differentiated = replace(of, backward=True)
    return {
        "gradients": covering_set(differentiated, seed),
        "outputs": covering_set(of, seed, visited=legal_pairs(differentiated)),
    }


def covering_set(of: space.Space, seed: int, *, visited: Set[Pair] = frozenset()) -> list[Drawn]:
    """Cases of a space that together show every legal pair not yet `visited`.

    The same for the same seed, in every process, and another for another.
    """
    wanted = legal_pairs(of).difference(visited)
    chosen = random.Random(seed)
    pool = [draw(of, chosen) for _ in range(min(_POOL, _DRAWS_PER_PAIR * len(wanted)))]
    missing = _Missing(wanted)
    for each in pool:
        missing.remove(*missing.shown(each))
    aim = Aim(of, pool[:])
    while pair := missing.first():
        pool.append(aim.draw(pair, chosen) or draw(of, chosen))
        missing.remove(*missing.shown(pool[-1]))
    return list(_best_first(pool, _Missing(wanted)))


def part(whole: Sequence[T], shard: int, shards: int) -> Sequence[T]:
    """What one of several equal shards runs; together they run all, none runs what another does."""
    return whole[shard::shards]


class Aim:
    """Draws cases that show given atoms, at sizes at which cases drawn before show them.

    What is rare needs rare sizes: one in fourteen key lengths has majors of several minors.  With
    those given, some dozens of draws find it.
    """

    _ATTEMPTS = 100

    def __init__(self, of: space.Space, before: Sequence[Drawn]) -> None:
        self._space = of
        self._before = before
        self._sizes: dict[Atom, list[set[int]]] = {}

    def draw(self, atoms: Collection[Atom], chosen: random.Random) -> Drawn | None:
        """A case that shows the atoms, None if none was found."""
        of_atoms = (self._sizes_of(atom) for atom in atoms)
        sizes = [set.intersection(*seen) for seen in zip(*of_atoms, strict=True)]
        for _ in range(self._ATTEMPTS):
            drawn = draw(self._space, chosen, sizes)
            if set(atoms) <= set(drawn.atoms):
                return drawn
        return None

    def _sizes_of(self, atom: Atom) -> list[set[int]]:
        """Of each dimension, the sizes at which the atom was seen."""
        if atom not in self._sizes:
            showing = [drawn.case for drawn in self._before if atom in drawn.atoms]
            self._sizes[atom] = [
                {getattr(case, name) for case in showing} for name in space.DIMENSIONS
            ]
        return self._sizes[atom]


class _Missing:
    """Pairs that no case has shown yet: for each atom the others, as the bits of an integer."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        pairs = sorted(pairs)
        self._atoms = sorted({atom for pair in pairs for atom in pair})
        self._numbers = {atom: number for number, atom in enumerate(self._atoms)}
        self._others = [0] * len(self._atoms)
        for one, other in pairs:
            self._others[self._numbers[one]] |= 1 << self._numbers[other]
            self._others[self._numbers[other]] |= 1 << self._numbers[one]

    def shown(self, drawn: Drawn) -> tuple[list[int], int]:
        """The numbers of a case's atoms, in a list and as bits."""
        numbers = [self._numbers[a] for a in drawn.atoms if a in self._numbers]
        return numbers, sum(1 << number for number in numbers)

    def count(self, numbers: Iterable[int], bits: int) -> int:
        """How many of the pairs are among the atoms of `shown`, each counted twice."""
        return sum((self._others[number] & bits).bit_count() for number in numbers)

    def remove(self, numbers: Iterable[int], bits: int) -> None:
        for number in numbers:
            self._others[number] &= ~bits

    def first(self) -> Pair | None:
        """Some pair that is left; None if none is."""
        for number, others in enumerate(self._others):
            if others:
                return self._atoms[number], self._atoms[others.bit_length() - 1]
        return None


def _best_first(pool: Sequence[Drawn], missing: _Missing) -> Iterator[Drawn]:
    """Takes the case with the most missing pairs, until no case has any.

    What a case adds only lessens while others are taken, so that most need not be counted again:
    the heap holds what each added when it was last counted.
    """
    shown = [missing.shown(drawn) for drawn in pool]
    heap = [(-missing.count(*each), index) for index, each in enumerate(shown)]
    heapq.heapify(heap)
    while heap:
        counted, index = heap[0]
        added = missing.count(*shown[index])
        if added == 0:
            heapq.heappop(heap)
        elif -added != counted:
            heapq.heapreplace(heap, (-added, index))
        else:
            heapq.heappop(heap)
            missing.remove(*shown[index])
            yield pool[index]
