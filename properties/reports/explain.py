"""Runs failures once more, in a process of its own, to draw and to explain them.

`python -m properties.reports.explain FILE` reads a job as JSON from standard input and writes what
it finds to FILE, a line for each failure as soon as it has one. A target that crashes or hangs when
it is run again takes this process with it, not the report of the run.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from properties import engines, environment
from properties.cases.case import Case
from properties.claims import checks
from properties.commands import replay
from properties.judging.result import CHIP, Result, engines_for
from properties.judging.targets import Target
from properties.reports import alike, essential, grid
from properties.shrinking.signature import Signature

MOST = 8
"""Failures that are explained, each of another kind."""

_STARTING = 30.0  # seconds that the process may take beside its work


def explanations(failures: Sequence[alike.Failure], seconds: float) -> list[dict[str, Any]]:
    """What is found on the simplest failure of each kind; `seconds` are shared out among them.

    Each tells which `failure` it is about by its place, and has "drawing" (see `grid.drawing`) and
    "essential" (see `essential.explain`), or else "trouble": why there is nothing.
    """
    places = [group[0] for group in alike.groups(failures)][:MOST]
    if not places:
        return []
    job = {"seconds": seconds, "failures": [[place, failures[place]] for place in places]}
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "explanations"
        ended = _run(job, written, seconds + _STARTING)
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    # Of each failure the last line that was written whole.
    found = {each["failure"]: each for each in map(json.loads, lines)}
    return [found.get(place, {"failure": place, "trouble": ended}) for place in places]


def _run(job: dict[str, Any], written: pathlib.Path, timeout: float) -> str:
    """Runs the job; how it ended, for those failures that it did not come to."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(written)],
            input=json.dumps(job),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"running it again took more than {timeout:.0f} s"
    last = done.stderr.strip().splitlines()[-1:] or [""]
    return f"running it again ended the process with code {done.returncode}: {last[0][:300]}"


def main(path: str) -> None:
    """Works through the job on standard input."""
    environment.settle()
    job = json.load(sys.stdin)
    began = time.monotonic()
    with open(path, "w", encoding="utf-8") as file:
        for number, (place, failure) in enumerate(job["failures"]):
            share = job["seconds"] * (number + 1) / len(job["failures"])
            explanation: dict[str, Any] = {"failure": place}
            try:
                for more in _explain(failure, began + share):
                    explanation |= more
                    file.write(json.dumps(explanation) + "\n")
                    file.flush()
            except ValueError as error:
                # About the report, its target or the size: what a target raises is a verdict.
                explanation.setdefault("trouble", str(error))
                file.write(json.dumps(explanation) + "\n")


def _explain(failure: alike.Failure, deadline: float) -> Iterator[dict[str, Any]]:
    """Yields what is known of one failure, the drawing first. Raises ValueError."""
    request = replay.parse(json.dumps(failure), pathlib.Path())
    mode = request.mode or "auto"
    if engines_for(mode) == (CHIP,):
        engines.claim_chip()
    target = Target.load(str(request.target), request.masked_rows)
    name = str(request.property)

    def check(case: Case) -> Result:
        return checks.PROPERTIES[name](case, target, mode)

    result = check(request.case)
    if result.failure is None:
        yield {"trouble": "run again, it did not fail"}
        return
    wanted = Signature.of(failure)

    def same(result: Result) -> bool:
        assert result.failure is not None
        again = {"property": name, "verdict": result.failure.to_dict()}
        return Signature.of(again) == wanted

    try:
        yield {"drawing": grid.drawing(request.case, target, result)}
    except ValueError as error:
        yield {"trouble": str(error)}
    yield {"essential": essential.explain(request.case, check, same, deadline)}


if __name__ == "__main__":
    main(sys.argv[1])
