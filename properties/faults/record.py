"""What is kept of mutants: results, and explanations of those that nothing can see.

Results are lines of JSON, the last line of a key is the one that holds, so that a run appends as it
goes and may be ended at any time.  Explanations are written by hand:

    ["tile.logits"]
    'if call.sm_scale != 1.0: => if call.sm_scale != 2.0:' = "multiplies by 1, exactly"
"""

import json
import pathlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from properties.faults.mutants import Mutant
from properties.faults.trying import Outcome

RESULTS = pathlib.Path(__file__).with_name("mutants.jsonl")
EQUIVALENTS = pathlib.Path(__file__).with_name("equivalents.toml")

_SHOWN = 160
# Left out of messages, which are for any checkout.
_HERE = pathlib.Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """What became of a mutant: `tiers` is how many it has survived, or been put to until killed."""

    key: str
    scope: str
    operator: str
    change: str
    killed_by: str | None
    message: str
    tiers: int
    trials: int
    cpu_seconds: float

    @classmethod
    def of(cls, mutant: Mutant, outcome: Outcome, before: "Result | None", tiers: int) -> "Result":
        """The result after one more tier, which makes so many."""
        return cls(
            mutant.key,
            mutant.scope,
            mutant.operator,
            mutant.change,
            outcome.killed_by,
            outcome.message.replace(f"{_HERE}/", "")[:_SHOWN],
            tiers,
            outcome.trials + (before.trials if before else 0),
            round(outcome.cpu_seconds + (before.cpu_seconds if before else 0), 2),
        )


def read_results(path: pathlib.Path) -> dict[str, Result]:
    """The results by key; none if there is no such file. Raises ValueError for another file."""
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [Result(**json.loads(line)) for line in lines]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not results of mutants ({error})") from error
    return {result.key: result for result in found}


def append(path: pathlib.Path, result: Result) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(result))


def write_results(path: pathlib.Path, results: Iterable[Result]) -> None:
    """Replaces the file by these results, in this order."""
    path.write_text("".join(map(_line, results)), encoding="utf-8")


def _line(result: Result) -> str:
    return f"{json.dumps(asdict(result), ensure_ascii=False)}\n"


@dataclass(frozen=True)
class Equivalents:
    """Why changes cannot be seen, by scope and change. "line before => *" is for all of a line."""

    whys: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Equivalents":
        """The explanations; none if there is no such file. Raises ValueError for another file."""
        if not path.exists():
            return cls({})
        try:
            return cls(tomllib.loads(path.read_text(encoding="utf-8")))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: {error}") from error

    def why(self, mutant: Mutant) -> str | None:
        """The explanation of a mutant, None if there is none."""
        of_scope = self.whys.get(mutant.scope, {})
        return of_scope.get(mutant.change) or of_scope.get(_any_of_line(mutant))

    def stale(self, mutants: Sequence[Mutant], results: Mapping[str, Result]) -> list[str]:
        """Explanations of mutants that are no more, or that were killed: a line for each.

        Only scopes of the modules that the mutants are of are looked at.
        """
        modules = {mutant.module for mutant in mutants}
        lines = []
        for scope, changes in self.whys.items():
            if scope.partition(".")[0] not in modules:
                continue
            inside = [mutant for mutant in mutants if mutant.scope == scope]
            for change in changes:
                meant = [m for m in inside if change in (m.change, _any_of_line(m))]
                known = [results[m.key].killed_by for m in meant if m.key in results]
                if not meant:
                    lines.append(f"{scope}: {change}: no such mutant is made any more")
                elif len(known) == len(meant) and None not in known:
                    lines.append(f"{scope}: {change}: was killed by {known[0]}")
        return lines


def _any_of_line(mutant: Mutant) -> str:
    return f"{mutant.change.partition(' => ')[0]} => *"
