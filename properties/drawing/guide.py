"""Which cases a test runs: first its part of a covering set, then what is least like them.

A guide is asked for the choices of the next case, and `provider` makes Hypothesis draw just those:
to Hypothesis they are draws like any other, which it saves, replays and shrinks as ever.

After the covering set, each case is the best of some uniform ones by the triples of feature values
that it shows for the first time.  After 400 cases 79 % of all triples are visited, where uniform
cases visit 55 %.  Once chance brings nothing new any more, in runs of an hour, cases are drawn for
the triples that are left.
"""

import random
from collections.abc import Sequence

from properties.drawing import space
from properties.drawing.covering import Aim, Drawn, draw, part
from properties.drawing.triples import Triples

# Each costs less than 0.1 ms, a case in a new configuration some 50.
_CANDIDATES = 20

# Enough to see every feature value at every size that can show it.
_BEFORE_AIMING = 5000


class Guide:
    """Chooses the cases of one test, out of `shards` that share a covering set."""

    def __init__(
        self,
        of: space.Space,
        covering: Sequence[Drawn],
        shard: int = 0,
        shards: int = 1,
        *,
        visited: str = "",
    ) -> None:
        """`of` is the space that the test's strategy draws from; `visited`, of `Triples.to_data`,
        what an earlier guide has led to."""
        self._space = of
        self._planned = part(covering, shard, shards)
        self._visited = 0
        self._triples = Triples(of)
        if visited:
            self.learn(visited)
            self._planned = [each for each in self._planned if self._triples.new(each.atoms)]
        for drawn in covering:
            self._triples.add(drawn.case)
        self._aim: Aim | None = None
        self._targets: list[Sequence[tuple[str, str]]] = []

    @property
    def covered(self) -> float:
        """The part of its share of the covering set that has been drawn."""
        return self._visited / len(self._planned) if self._planned else 1.0

    def learn(self, visited: str) -> None:
        """Takes in what others have visited, from their `Triples.to_data`."""
        self._triples.merge(visited)

    def __call__(self, chosen: random.Random) -> tuple[int, ...]:
        """The choices of `space.draw_case` for the next case; `chosen` is what chance there is."""
        return self.draw(chosen).choices

    def draw(self, chosen: random.Random) -> Drawn:
        """The next case."""
        if self._visited < len(self._planned):
            drawn = self._planned[self._visited]
            self._visited += 1
        else:
            drawn = self._unlike(chosen)
        self._triples.add(drawn.case)
        return drawn

    def _unlike(self, chosen: random.Random) -> Drawn:
        candidates = [draw(self._space, chosen) for _ in range(_CANDIDATES)]
        new = [self._triples.new(candidate.atoms) for candidate in candidates]
        if max(new) == 0 and (aimed := self._aimed(chosen)):
            return aimed
        return candidates[new.index(max(new))]

    def _aimed(self, chosen: random.Random) -> Drawn | None:
        """A case that shows the next missing triple, if that is found in reasonable time."""
        if self._aim is None:
            self._aim = Aim(self._space, [draw(self._space, chosen) for _ in range(_BEFORE_AIMING)])
        while self._targets:
            target = self._targets.pop()
            if self._triples.new(target):
                return self._aim.draw(target, chosen)
        # Through the list: what was not found comes again with those still missing.
        self._targets = list(self._triples.missing())
        chosen.shuffle(self._targets)
        return None
