"""Which part of the work this machine does, out of several that do not talk to each other."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Set by Kubernetes in the pods of an Indexed Job; it does not say how many there are, which its
# manifest has to pass on.
INDEX, COUNT = "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"


@dataclass(frozen=True)
class Shard:
    """One of `count` parts, from 0."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def shard_of(option: str | None, environment: Mapping[str, str] = os.environ) -> Shard:
    """The shard that `--shard` names, as "0/4"; else the one of a Kubernetes Indexed Job; else the
    only one. Raises ValueError for anything else."""
    if option is not None:
        return _parsed("--shard", option)
    if INDEX not in environment:
        return Shard(0, 1)
    if COUNT not in environment:
        raise ValueError(
            f"{INDEX} is set, {COUNT} is not: set it to the job's completions, or give --shard I/N"
        )
    return _parsed(f"{INDEX}/{COUNT}", f"{environment[INDEX]}/{environment[COUNT]}")


def _parsed(name: str, text: str) -> Shard:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"{name} {text!r} is not I/N with I from 0 to N - 1, as in 0/4")
    return Shard(int(match[1]), int(match[2]))
