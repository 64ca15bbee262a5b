"""The suite as a user runs it: options, profiles, failures, budget, workers."""

import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import time
from typing import Any

import pytest

from properties.cases.case import Case
from properties.claims import checks
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.session.run import Budget, BudgetSpent, Run, seconds_of

TARGETS = """
import os

import jax.numpy as jnp

features = ("gradients",)
dtypes = ("float32",)

def call(q, k, v, ab=None, segment_ids=None, *, causal=False, sm_scale=1.0, block_sizes=None,
         debug=False):
    logits = sm_scale * jnp.einsum("bhqd,bhkd->bhqk", q, k)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdims=True)

class wrong:
    features = features
    dtypes = dtypes
    def call(q, k, v, *rest, **options):
        return call(q, k, v, **options) * (1.001 if q.shape[2] > 2 else 1)

class crashing:
    def call(*rest, **options):
        os._exit(1)
"""


@pytest.fixture
def suite(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> Any:
    """Runs the property suite in a process of its own; gives the outcome and the JSON report."""
    (tmp_path / "attention.py").write_text(TARGETS, encoding="utf-8")
    (tmp_path / "broken.py").write_text("raise OSError('no chip')\n", encoding="utf-8")
    (tmp_path / "adapter.py").write_text("import attention as right\n", encoding="utf-8")
    written = tmp_path / "report.json"

    def run(*arguments: str, **environment: str) -> tuple[Any, dict[str, Any]]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += [f"--report-json={written}", *arguments]
        paths = f"{tmp_path}:{pytestconfig.rootpath}"
        done = subprocess.run(
            command,
            cwd=pytestconfig.rootpath,
            env=os.environ | {"PYTHONPATH": paths} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, json.loads(written.read_text()) if written.exists() else {}

    return run


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--target=kernel", "MODULE:NAME"),
        ("--target=broken:attend", "no chip"),
        ("--mode=fast", "invalid choice: 'fast'"),
        ("--generations=v5e,v9", "unknown generations v9"),
        ("--budget=10", "'10'"),
    ],
)
def test_bad_option_is_a_usage_error(suite: Any, option: str, words: str) -> None:
    done, _ = suite("properties/test_outputs.py", option)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in done.stderr.splitlines() if words in line]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr + done.stdout


def test_failure_explains_itself_and_is_reported_once(suite: Any) -> None:
    done, report = suite(
        "properties/test_outputs.py",
        *("-n2", "--target=attention:wrong", "--hypothesis-profile=smoke", "-k", "0 or 1"),
    )

    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in done.stdout
    assert "is beyond the bound" in done.stdout
    assert report["verdict"] == "fail"
    assert report["properties"]["outputs"]["verdict"] == "fail"
    # On a CI machine pytest says each message in full once more, at the end.
    said, _, _ = done.stdout.partition("short test summary")
    assert len(report["failures"]) == said.count("  replay: ") > 0
    for failure in report["failures"]:
        # Reduced: the fault shows from 3 queries on, in any case.
        assert failure["case"]["q_len"] == 7
        assert failure["case"]["batch"] == failure["case"]["heads"] == 1
        assert failure["verdict"]["ratio"] > 1
        named = {name: failure[name] for name in ("schema", "property", "case")}
        command = f"echo {shlex.quote(json.dumps(named))} | python -m properties replay -"
        assert command in done.stdout


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_stopping_at_a_failure_is_a_failure(suite: Any, workers: str) -> None:
    """Exit code 1, where pytest-xdist by itself ends as if interrupted."""
    done, report = suite(
        "properties/test_outputs.py",
        *("-x", workers, "--target=attention:wrong", "--hypothesis-profile=smoke"),
    )

    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert report["verdict"] == "fail"


def test_right_target_passes_within_its_claims(suite: Any) -> None:
    """Also: seeds give every test cases of its own, and Hypothesis's profile for CI stays out."""
    done, report = suite(
        "properties/test_outputs.py",
        *("--target=adapter:right", "--hypothesis-profile=smoke", "--hypothesis-seed=1"),
        "--budget=2m",
        CI="true",
    )

    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert report["verdict"] == "pass"
    assert report["profile"] == "smoke"
    assert report["target"] == "adapter:right"
    assert report["cases"] == 80
    # The minimal case, with which every test begins, may come up in each.
    assert report["configurations"] >= 12
    assert report["outputs"]["o"]["worst_ratio"] < 1
    assert report["failures"] == []
    assert "error / bound" in done.stdout


def test_worker_that_crashes_is_missed(suite: Any) -> None:
    done, report = suite(
        "properties/test_outputs.py",
        *("-n1", "--max-worker-restart=0", "--target=attention:crashing", "-k", "0"),
    )

    assert done.returncode != pytest.ExitCode.OK
    assert "worker gw0 crashed" in done.stdout
    assert report["verdict"] == "fail"
    assert "worker gw0" in [skipped["what"] for skipped in report["skipped"]]


def test_tests_of_a_deterministic_run_draw_different_cases(suite: Any) -> None:
    done, report = suite(
        "properties/test_outputs.py",
        *("--target=adapter:right", "--hypothesis-profile=ci", "-k", "0 or 1"),
    )

    assert done.returncode == pytest.ExitCode.OK, done.stdout
    # Five cases go on each configuration; a few may come up in both tests, the minimal one does.
    assert report["configurations"] > 0.75 * report["cases"] / 5


def test_budget_that_runs_out_is_no_failure(suite: Any) -> None:
    done, report = suite(
        *("properties/test_outputs.py", "--target=adapter:right", "--budget=0.1s"), CI="true"
    )

    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert report["profile"] == "dev"
    assert report["cases"] < 40
    assert "out of budget" in done.stdout
    assert report["skipped"][0]["why"] == "out of budget"
    assert "skipped" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("budget", "seconds"), [("90s", 90), ("20m", 1200), ("0.5h", 1800)])
def test_budget_is_a_time(budget: str, seconds: float) -> None:
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["", "90", "s", "-1s", "0s", "1d", "nan s", "1 s", "1e3s"])
def test_budget_that_is_no_time(budget: str) -> None:
    with pytest.raises(ValueError, match="budget"):
        seconds_of(budget)


def test_budget_is_shared_by_weight_and_what_is_left_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = Budget(100.0, {"a": 1.0, "b": 0.5, "c": 0.5}, workers=1)

    assert budget.share("a") == pytest.approx(50.0)
    now[0] = 10.0
    assert budget.share("b") == pytest.approx(45.0)
    now[0] = 55.0
    assert budget.share("c") == pytest.approx(45.0)


def test_budget_of_two_workers_is_spent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    budget = Budget(100.0, dict.fromkeys("abcd", 1.0), workers=2)

    assert budget.share("a") == pytest.approx(50.0)


def test_out_of_budget_are_the_draws_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        checks.PROPERTIES, "outputs", lambda case, target, mode: Result("outputs", case, mode)
    )
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Run(Target("it", print, dict, tuple), "numpy")
    run.begin(10.0, planned=5)
    case = Case(1, 1, 8, 8, 8)

    run.explore("outputs", case)
    now[0] = 11.0
    with pytest.raises(BudgetSpent):
        run.explore("outputs", case)

    # One was drawn, and run on further data.
    assert run.tally.properties["outputs"].cases == 5
    assert run.tally.properties["outputs"].unvisited == 4


def test_behind_its_budget_a_test_covers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        checks.PROPERTIES, "outputs", lambda case, target, mode: Result("outputs", case, mode)
    )
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Run(Target("it", print, dict, tuple), "numpy")
    run.begin(100.0, planned=1000)
    guide = run.guide("outputs", 0, 4, seed=0)
    now[0] = 50.0

    cases = []
    while guide.covered < 1:
        run.explore("outputs", guide.draw(random.Random(0)).case)
        cases.append(run.tally.properties["outputs"].cases)

    # With half of its time gone, further data is drawn only once half of its set is visited.
    half = (len(cases) - 1) // 2
    assert cases[:half] == list(range(1, half + 1))
    assert cases[half + 1 :] == [cases[half] + 5 * more for more in range(1, len(cases) - half)]
