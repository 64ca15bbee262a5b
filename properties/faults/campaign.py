"""A run over the mutants of some modules: what is tried, what that says, and how it is told."""

import math
import pathlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from properties.faults import reach, record, trials, trying
from properties.faults.mutants import Mutant, mutants_of
from properties.faults.planting import source_of
from properties.faults.record import Equivalents, Result


@dataclass
class Campaign:
    """The mutants of modules of the kernel, with what is known of them.

    `results` is the file that every result is added to as soon as it is there.
    """

    modules: Sequence[str]
    results: pathlib.Path
    equivalents: Equivalents

    def __post_init__(self) -> None:
        self.known = record.read_results(self.results)
        self.mutants = [
            each for module in self.modules for each in mutants_of(module, source_of(module))
        ]

    def run(self, tiers: int) -> None:
        """Tries what is not settled, tier by tier, so that most is known soon.

        Killed is killed, as long as the code is the same; a change of another module may let it
        live, which a new file of results would tell.  What is explained is put to one tier only.
        What has survived every tier begins again: the suite may have become better.
        """
        pending = [mutant for mutant in self.mutants if not self._settled(mutant)]
        again = {mutant.key for mutant in pending if self._tiers(mutant) >= tiers}
        for number in range(tiers):
            due = [m for m in pending if m.key in again or self._tiers(m) == number]
            if due:
                self._put_to(number, due, again)
            pending = [mutant for mutant in pending if not self._settled(mutant)]
        self._tidy()

    def _put_to(self, number: int, due: Sequence[Mutant], again: set[str]) -> None:
        plan = trials.tier(number)
        everywhere = trying.lines_at_import()
        reached = trying.reaches_of(plan)
        for count, mutant in enumerate(due, start=1):
            chosen = [
                trial
                for trial, lines in zip(plan, reached, strict=True)
                if reach.reaches(everywhere, mutant) or reach.reaches(lines, mutant)
            ]
            before = None if number == 0 else self.known[mutant.key]
            outcome = trying.attempt(mutant, chosen)
            result = Result.of(mutant, outcome, before, number + 1)
            self.known[mutant.key] = result
            record.append(self.results, result)
            said = f"tier {number + 1}, {count} of {len(due)}: {line(result)}"
            print(said, file=sys.stderr, flush=True)

    def _settled(self, mutant: Mutant) -> bool:
        result = self.known.get(mutant.key)
        return result is not None and (result.killed_by is not None or self._explained(mutant))

    def _tiers(self, mutant: Mutant) -> int:
        result = self.known.get(mutant.key)
        return 0 if result is None else result.tiers

    def _explained(self, mutant: Mutant) -> bool:
        return self.equivalents.why(mutant) is not None

    def _tidy(self) -> None:
        """Leaves one line for each mutant there is, in order, and those of other modules."""
        made = {mutant.key for mutant in self.mutants}
        others = [
            result
            for result in self.known.values()
            if result.key not in made and result.scope.partition(".")[0] not in self.modules
        ]
        mine = [self.known[mutant.key] for mutant in self.mutants if mutant.key in self.known]
        self.known = {result.key: result for result in (*others, *mine)}
        record.write_results(self.results, sorted(self.known.values(), key=lambda r: r.scope))

    def survivors(self) -> list[Mutant]:
        """What was tried, not killed, and not explained."""
        return [
            mutant
            for mutant in self.mutants
            if (result := self.known.get(mutant.key))
            and result.killed_by is None
            and not self._explained(mutant)
        ]

    def stale(self) -> list[str]:
        return self.equivalents.stale(self.mutants, self.known)

    def untried(self) -> int:
        return sum(mutant.key not in self.known for mutant in self.mutants)

    def report(self) -> list[str]:
        """Survivors, stale explanations, then the score of every module."""
        lines = [f"survives  {line(self.known[mutant.key])}" for mutant in self.survivors()]
        lines += [f"stale     {each}" for each in self.stale()]
        lines += [f"{'module':16} mutants  killed  explained  survive  score  median CPU-s  CPU-s"]
        for module in self.modules:
            lines.append(self._score(module, [m for m in self.mutants if m.module == module]))
        lines.append(self._score("all", self.mutants))
        if untried := self.untried():
            lines.append(f"{untried} mutants were not tried")
        killers = Counter(self.known[m.key].killed_by for m in self.mutants if m.key in self.known)
        counted = ", ".join(f"{name} {n}" for name, n in killers.most_common() if name is not None)
        lines.append(f"killed by {counted}")
        return lines

    def _score(self, name: str, mutants: Iterable[Mutant]) -> str:
        mutants = list(mutants)
        results = [self.known[m.key] for m in mutants if m.key in self.known]
        killed = sum(result.killed_by is not None for result in results)
        explained = sum(
            self._explained(m) and self.known[m.key].killed_by is None
            for m in mutants
            if m.key in self.known
        )
        judged = len(results) - explained
        score = f"{killed / judged:.1%}" if judged else "-"
        seconds = sorted(result.cpu_seconds for result in results)
        median = seconds[len(seconds) // 2] if seconds else math.nan
        return (
            f"{name:16} {len(mutants):7} {killed:7} {explained:10} {judged - killed:8} {score:>6} "
            f"{median:13.2f} {sum(seconds):6.0f}"
        )


def line(result: Result) -> str:
    """One result for a person."""
    fate = (
        f"{result.killed_by or 'SURVIVED':24} {result.cpu_seconds:6.1f} s {result.trials:5} trials"
    )
    return f"{fate}  {result.scope}: {result.change}"
