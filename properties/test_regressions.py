"""Cases that once failed, or that a bug report describes: replayed first in every run.

A report is replayed under its property, a bare case under outputs and gradients.
"""

import pathlib

import pytest

from properties.commands import replay
from properties.session.run import Run

_FOLDER = pathlib.Path(__file__).parent / "regressions"


@pytest.mark.parametrize("name", sorted(path.stem for path in _FOLDER.glob("*.json")))
def test_regressions(run: Run, name: str) -> None:
    path = _FOLDER / f"{name}.json"
    request = replay.parse(path.read_text(encoding="utf-8"), path.parent)
    for each in replay.properties_of(request.property, request.case):
        run.check(each, request.case)
