"""Every known finding replays as it is told, with the versions of jax that it names."""

import pathlib
import re
from typing import NamedTuple

import jax
import pytest

from properties.commands import replay

_TEXT = (pathlib.Path(__file__).parents[1] / "known_findings.md").read_text(encoding="utf-8")


class Finding(NamedTuple):
    """One section: its title, the versions of jax, the output that is wrong, report and target."""

    title: str
    versions: list[str]
    output: str
    report: str
    target: str


FINDINGS = [
    Finding(title, versions.split(", "), output, report, target)
    for title, versions, output, report, target in re.findall(
        r"^### (.+)\n\njax ([\d., ]+)\. Output (\w+).*\n\n```json\n(.+)\n```\n\n"
        r"    python -m properties replay - --target (\S+)\n",
        _TEXT,
        flags=re.MULTILINE,
    )
]


def test_every_section_is_read() -> None:
    assert len(FINDINGS) == _TEXT.count("\n### ") > 0


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.title)
def test_finding(finding: Finding) -> None:
    request = replay.parse(finding.report, pathlib.Path())

    (result,) = replay.run(request, finding.target, None, None)

    if ".".join(jax.__version__.split(".")[:2]) in finding.versions:
        assert result.failure is not None
        assert result.failure.output == finding.output
    else:
        assert result.failure is None
