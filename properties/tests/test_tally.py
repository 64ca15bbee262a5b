"""Counts that survive the way between processes, and what is said of them at the end."""

import json
from typing import Any

import pytest

from properties.cases.case import Case
from properties.judging.result import Result
from properties.judging.verdict import Verdict
from properties.session import summary
from properties.session.tally import Tally


def _result(ratio: float = 0.5, seed: int = 0, **fields: Any) -> Result:
    case = Case(1, 1, 8, 8, 8, seed=seed, causal=bool(seed % 2))
    verdict = Verdict("o", "", (0, 0, 0, 0), 1.0, 1.0, 1.0, ratio, 64)
    return Result("outputs", case, "numpy", [verdict], 8, ran=["numpy"], **fields)


def _report(tally: Tally) -> dict[str, Any]:
    report = summary.report(
        tally,
        target="it",
        masked_rows="any",
        mode="auto",
        profile="dev",
        passed=True,
        seconds=2.0,
        cpu_seconds=1.0,
    )
    # Strict JSON, as it is written.
    return json.loads(json.dumps(report, allow_nan=False))


def test_cases_that_share_a_configuration_are_counted_apart() -> None:
    tally = Tally()
    for seed in range(6):
        tally.add(_result(seed=seed), 0.1)

    report = _report(tally)

    assert report["cases"] == 6
    assert report["configurations"] == 2
    assert report["elements"] == 6 * 64
    assert report["rows"] == 6 * 8
    assert report["properties"]["outputs"]["cases"] == 6


def test_worst_ratio_is_exact_and_median_is_of_the_cases() -> None:
    tally = Tally()
    for ratio in (0.123456, 0.2, 0.987654):
        tally.add(_result(ratio), 0.1)

    output = _report(tally)["outputs"]["o"]

    assert output["worst_ratio"] == 0.987654
    assert output["median_ratio"] == 0.2
    assert list(_report(tally)["outputs"]) == ["o"]


def test_infinite_ratio_is_written_as_text() -> None:
    tally = Tally()
    tally.add(_result(float("inf")), 0.1)

    assert _report(tally)["outputs"]["o"]["worst_ratio"] == "inf"


def test_merging_is_counting_in_one_process() -> None:
    together, first, second = Tally(), Tally(), Tally()
    for seed in range(5):
        result = _result(0.1 * (seed + 1), seed=seed)
        if seed == 3:
            result.refused = "no"
        if seed == 4:
            result.skipped = "not claimed"
        for tally in (together, (first, second)[seed % 2]):
            tally.add(result, 0.25)

    merged = Tally()
    for part in (first, second):
        merged.merge(json.loads(json.dumps(part.to_data())))

    # Stages belong to the process, which is the same for all of these.
    ours, theirs = _report(merged), _report(together)
    assert ours | {"stages": None} == theirs | {"stages": None}
    assert ours["refused"] == 1
    assert ours["skipped"] == [{"what": "outputs", "why": "not claimed", "cases": 1}]


@pytest.mark.parametrize(("untested", "vacuous"), [(16, False), (17, True)])
def test_more_than_a_fiftieth_of_the_rows_untested_is_vacuous(untested: int, vacuous: bool) -> None:
    tally = Tally()
    result = _result()
    result.rows, result.untested_rows = 800, untested
    tally.add(result, 0.1)

    assert bool(tally.vacuous) is vacuous


def test_nothing_run_is_not_vacuous() -> None:
    assert not Tally().vacuous


def test_summary_says_what_was_left_out() -> None:
    tally = Tally()
    tally.add(_result(), 0.1)
    tally.add(_result(refused="ValueError: no"), 0.1)
    tally.add(_result(skipped="not claimed"), 0.1)
    tally.add(_result(fallback="scatter is not supported"), 0.1)
    tally.properties["outputs"].unvisited = 7

    text = "\n".join(summary.lines(tally))

    for words in ("3 cases", "ValueError: no", "not claimed", "scatter", "7 cases of outputs"):
        assert words in text
    assert len(text.splitlines()) < 20


def test_lost_worker_is_missed_by_person_and_program() -> None:
    tally = Tally()
    tally.add(_result(), 0.1)
    tally.lost_workers.append("gw1")

    assert any("gw1 crashed" in line for line in summary.lines(tally))
    assert {"what": "worker gw1", "why": "crashed, none of its cases is counted"} in _report(tally)[
        "skipped"
    ]


def test_failure_makes_its_property_fail() -> None:
    tally = Tally()
    tally.add(_result(), 0.1)
    tally.fail({"property": "outputs"})

    report = _report(tally)

    assert report["properties"]["outputs"]["verdict"] == "fail"
    assert report["failures"] == [{"property": "outputs"}]
