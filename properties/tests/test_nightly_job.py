"""The nightly job: what a runner's shell is told to run, run without a TPU."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml

WORKFLOW = ".github/workflows/nightly-tpu.yml"
MANIFEST = ".kubernetes/nightly-tpu.yaml"


@pytest.fixture
def job(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> Any:
    """Runs a shell step in an empty folder, where Python has the project but pip does nothing."""
    for place in (tmp_path / ".venv" / "bin", tmp_path / "bin"):
        place.mkdir(parents=True)
        python = place / "python3"
        python.write_text(
            f'#!/bin/bash\nif [ "$1 $2" = "-m pip" ]; then exit; fi\nexec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(pytestconfig.rootpath),
        "BUDGET": "3s",
        "MODE": "numpy",
        "DATABASE": "",
    }

    def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def _documents(root: pathlib.Path, name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((root / name).read_text(encoding="utf-8")))


def test_steps_of_the_workflow(
    job: Any, tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    (workflow,) = _documents(pytestconfig.rootpath, WORKFLOW)
    steps = {step["name"]: step for step in workflow["jobs"]["fuzz"]["steps"] if "run" in step}
    summary = tmp_path / "step-summary.md"

    fuzz = job(steps["Fuzz"]["run"], SHARD="0/1", GITHUB_STEP_SUMMARY=str(summary))
    told = job(steps["Text for an issue"]["run"], GITHUB_STEP_SUMMARY=str(summary))

    assert fuzz.returncode == 0, fuzz.stdout + fuzz.stderr
    assert (tmp_path / "fuzz" / "run.html").exists()
    assert (tmp_path / "fuzz" / "run.json").exists()
    assert told.returncode == 0, told.stderr
    assert "PASS" in summary.read_text()
    assert "Text for an issue" not in summary.read_text()
    # What a failed night leaves behind is what it is looked at for.
    for name in (
        "Text for an issue",
        "Keep what was found for the next night",
        "Reports, page and database",
    ):
        (step,) = (s for s in workflow["jobs"]["fuzz"]["steps"] if s.get("name") == name)
        assert step["if"] == "always()"


def test_summary_of_a_night_that_found_something(
    job: Any, tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    (workflow,) = _documents(pytestconfig.rootpath, WORKFLOW)
    steps = {step["name"]: step for step in workflow["jobs"]["fuzz"]["steps"] if "run" in step}
    summary = tmp_path / "step-summary.md"
    wrong = "--target properties.faults.catalogue:causal_sees_one_ahead"
    script = steps["Fuzz"]["run"].replace("properties fuzz", f"properties fuzz {wrong}")

    fuzz = job(script, SHARD="0/1", BUDGET="8s", GITHUB_STEP_SUMMARY=str(summary))
    told = job(steps["Text for an issue"]["run"], GITHUB_STEP_SUMMARY=str(summary))

    assert fuzz.returncode == 1, fuzz.stdout + fuzz.stderr
    assert told.returncode == 0, told.stderr
    assert "FAIL" in summary.read_text()
    assert "Text for an issue" in summary.read_text()
    assert "python -m properties replay" in summary.read_text()


def test_container_of_the_kubernetes_job(
    job: Any, tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    cron, *_ = _documents(pytestconfig.rootpath, MANIFEST)
    of_job = cron["spec"]["jobTemplate"]["spec"]
    (container,) = of_job["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert container["command"] == ["bash", "-euc"]
    assert int(variables["JOB_COMPLETIONS"]) == of_job["completions"] == of_job["parallelism"]

    (script,) = container["args"]
    # A database that no server stands behind: the job goes on without.
    ran = job(
        f"set -u\n{script}",
        **variables
        | {
            "BUDGET": "3s",
            "MODE": "numpy",
            "OUT": str(tmp_path / "found"),
            "DATABASE": "redis://127.0.0.1:9/0",
            "JOB_COMPLETION_INDEX": "3",
        },
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "found" / "3" / "run.json").exists()
