"""Every known finding replays as it is told, with the versions of jax that it names."""

import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import pytest

from properties.commands import replay

_TEXT = (pathlib.Path(__file__).parents[1] / "known_findings.md").read_text(encoding="utf-8")


class Finding(NamedTuple):
    """One section: its title, the versions of jax, the output that is wrong, how to replay it."""

    title: str
    versions: list[str]
    output: str
    command: str
    report: str
    target: str


FINDINGS = [
    Finding(title, versions.split(", "), *rest)
    for title, versions, *rest in re.findall(
        r"^### (.+)\n\njax ([\d., ]+)\. Output (\w+).*\n\n"
        r"```sh\n(echo '(.+)' \| python -m properties replay - --target (\S+))\n```\n",
        _TEXT,
        flags=re.MULTILINE,
    )
]


def test_every_section_is_read() -> None:
    assert len(FINDINGS) == _TEXT.count("\n### ") > 0


@pytest.mark.parametrize(
    "finding", FINDINGS, ids=lambda finding: f"{finding.target} {finding.title}"
)
def test_finding(finding: Finding) -> None:
    request = replay.parse(finding.report, pathlib.Path())

    (result,) = replay.run(request, finding.target, None, None)

    if ".".join(jax.__version__.split(".")[:2]) in finding.versions:
        assert result.failure is not None
        assert result.failure.output == finding.output
    else:
        assert result.failure is None


def test_command_replays_as_it_is_printed() -> None:
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])

    run = subprocess.run(
        FINDINGS[0].command,
        shell=True,
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )

    assert run.returncode == 1, run.stderr
    assert "FAIL" in run.stdout
