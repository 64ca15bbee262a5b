"""A failure as data (the report) and as text: what failed, on which case, how to see it again."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from properties import environment
from properties.claims.checks import Result
from properties.judging.targets import KERNEL, Target
from properties.judging.verdict import Verdict


class PropertyFailure(AssertionError):
    """A property does not hold. `report` is the failure report, the text is for a person."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(text(report))
        self.report = report


def report(result: Result, target: Target, verdict: Verdict) -> dict[str, Any]:
    """The failure report, schema 1: JSON-ready, enough to replay the case elsewhere."""
    return {
        "schema": 1,
        "target": target.name,
        "property": result.name,
        "mode": result.mode,
        "masked_rows": target.masked_rows,
        "case": result.case.to_dict(),
        "verdict": verdict.to_dict(),
        "environment": environment.versions(),
    }


def text(failure: Mapping[str, Any]) -> str:
    """The report for a person, in a few lines."""
    verdict = failure["verdict"]
    # The message may hold words of the target's.
    lines = [visible(f"{failure['property']}: {verdict['output']} {verdict['message']}")]
    if verdict["index"] is not None:
        lines.append(
            f"  at {verdict['output']}{verdict['index']}  got {_number(verdict['got'])}  "
            f"expected {_number(verdict['expected'])}  bound {_number(verdict['bound'])}  "
            f"ratio {_number(verdict['ratio'])}"
        )
    lines += [
        f"  target {failure['target']}, mode {failure['mode']}, "
        f"masked rows {failure['masked_rows']}",
        f"  case: {json.dumps(failure['case'])}",
        f"  replay: {replay_command(failure)}",
    ]
    return "\n".join(lines)


def visible(value: object) -> str:
    """The text of a value, in which what a screen does not show is written as its escape."""
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in str(value)
    )


def replay_command(failure: Mapping[str, Any]) -> str:
    """The command line that runs the case of a report again."""
    # A bare case would be run under other properties.
    report = json.dumps({name: failure[name] for name in ("schema", "property", "case")})
    parts = [f"echo {shlex.quote(report)} | python -m properties replay -"]
    if failure["target"] != KERNEL:
        parts.append(f"--target {shlex.quote(failure['target'])}")
    parts.append(f"--mode {shlex.quote(failure['mode'])}")
    parts.append(f"--masked-rows {shlex.quote(failure['masked_rows'])}")
    return " ".join(parts)


def _number(value: float | str | None) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
