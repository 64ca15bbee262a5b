"""The benchmark measures what it says, and compares with an earlier result."""

import argparse
import copy
import json
import pathlib
from typing import Any

import pytest

from properties.commands import benchmark
from properties.commands.workload import STAGES


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """A short measurement: one round of few cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "_SLICES", {"numpy": 2, "interpret": 1})
        return benchmark.measure(rate_seconds=0, scaling_seconds=0.2)


def test_every_figure_is_there_and_adds_up(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert set(result["modes"]) == {"numpy", "interpret"}
    for properties in result["modes"].values():
        for record in properties.values():
            new, reuse = record["new"], record["reuse"]
            assert new["failures"] == reuse["failures"] == 0
            assert new["cases"] == new["configurations"] > 0
            assert reuse["configurations"] == new["configurations"]
            assert reuse["cases"] > 2 * reuse["configurations"]
            assert reuse["cases_per_cpu_minute"] > new["cases_per_cpu_minute"]
            assert reuse["configurations_per_cpu_minute"] < new["configurations_per_cpu_minute"]
            milliseconds = sum(new["stages"][stage] for stage in STAGES)
            assert milliseconds == pytest.approx(1000 * new["seconds"] / new["configurations"])
            assert all(seconds >= 0 for stage, seconds in new["stages"].items() if stage != "rest")
    numpy = result["modes"]["numpy"]["gradients"]["new"]["stages"]
    interpret = result["modes"]["interpret"]["gradients"]["new"]["stages"]
    assert numpy["compile"] < interpret["compile"]
    assert result["ratio"]["gradients"] > 1
    assert result["scaling"]["ratio"] > 0


def test_the_figures_are_shown(result: dict[str, Any]) -> None:
    text = benchmark.lines(result)

    rate = result["modes"]["numpy"]["gradients"]["new"]["configurations_per_cpu_minute"]
    row = next(line for line in text if line.startswith("numpy      gradients"))
    assert f"{rate:.0f}" in row
    assert any(line.startswith("numpy / interpret") for line in text)


def test_a_slower_result_is_seen(result: dict[str, Any]) -> None:
    slower = copy.deepcopy(result)
    slower["modes"]["numpy"]["outputs"]["new"]["configurations_per_cpu_minute"] /= 2

    text = benchmark.comparison(slower, result)
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in text if line}
    assert rows["numpy", "outputs"] == ["0.50", "1.00"]
    assert rows["interpret", "outputs"] == ["1.00", "1.00"]


def test_results_are_written_and_compared(
    result: dict[str, Any], tmp_path: pathlib.Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(benchmark, "measure", lambda: result)
    path = tmp_path / "result.json"

    assert benchmark.command(options("--json", str(path))) == 0
    assert benchmark.read(str(path)) == result
    assert benchmark.command(options("--against", str(path))) == 0
    assert "now / earlier" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "not a benchmark result"),
        ("[]", "not a benchmark result of schema 1"),
        ('{"schema": 2, "modes": {}}', r"schema 1 \(schema 2\)"),
    ],
)
def test_another_file_is_refused(tmp_path: pathlib.Path, text: str | None, words: str) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=words):
        benchmark.command(options("--against", str(path)))


def test_a_result_that_could_not_be_written_is_not_measured(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="its folder does not exist"):
        benchmark.command(options("--json", str(tmp_path / "no" / "result.json")))
