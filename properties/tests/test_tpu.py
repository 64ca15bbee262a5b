"""Mode tpu, on chips that are not there: all but the device itself."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import pytest

from oracle import Arithmetic
from properties.cases import values
from properties.cases.case import Bias, Case
from properties.claims import checks
from properties.engines.program import Program
from properties.judging.result import Result
from properties.judging.targets import KERNEL, Target
from properties.session.run import Run
from properties.tests import emulated_chip

ADAPTER = "properties.tests.emulated_chip:adapter"

Suite = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any]]]


@pytest.fixture
def suite(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> Suite:
    """Runs the property suite on two chips; gives the outcome and the JSON report."""
    devices = tmp_path / "dev"
    devices.mkdir()
    written = tmp_path / "report.json"

    def run(*arguments: str, **environment: str) -> Any:
        # Chips are claimed in the folder for temporary files.
        given = {"EMULATED_CHIPS": "2", "EMULATED_DEVICES": str(devices), "TMPDIR": str(tmp_path)}
        command = [sys.executable, "-m", "pytest", "-p", emulated_chip.__name__]
        command += ["-p", "no:cacheprovider", "--hypothesis-profile=smoke", "--budget=10m"]
        done = subprocess.run(
            [*command, f"--report-json={written}", *arguments],
            cwd=pytestconfig.rootpath,
            env={name: text for name, text in os.environ.items() if name != "JAX_PLATFORMS"}
            | {"PYTHONPATH": str(pytestconfig.rootpath)}
            | given
            | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, json.loads(written.read_text()) if written.exists() else {}

    return run


def test_a_worker_a_chip_and_a_crashed_one_is_replaced(
    suite: Suite, tmp_path: pathlib.Path
) -> None:
    """Mode auto is tpu where one is attached. The parent has no chip, and what takes the place of
    the worker that crashed has the chip that this one had."""
    claims, crash = tmp_path / "claims", tmp_path / "crash"
    done, report = suite(
        "properties/test_outputs.py",
        f"--target={ADAPTER}",
        EMULATED_CLAIMS=str(claims),
        EMULATED_CRASH=str(crash),
    )

    assert crash.exists(), done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "replacing crashed worker" in done.stdout
    assert "1 failed, 3 passed" in done.stdout
    claimed = sorted(claims.read_text().split())
    assert claimed in (["0", "0", "1", "none"], ["0", "1", "1", "none"])
    assert report["outputs"]["o"]["worst_ratio"] < 1
    assert report["failures"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-n3",), "-n 3: a chip belongs to one process, and this machine has 2 that may be used"),
        (("--mode=tpu", "-n0"), None),
    ],
)
def test_processes_and_chips(suite: Suite, arguments: tuple[str, ...], words: str | None) -> None:
    done, report = suite("properties/test_outputs.py", f"--target={ADAPTER}", "-k", "0", *arguments)

    if words is None:
        assert done.returncode == pytest.ExitCode.OK, done.stdout
        assert report["cases"] == 20
        assert "workers" not in done.stdout
    else:
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert words in done.stderr


def test_without_a_chip_mode_tpu_is_a_usage_error(suite: Suite) -> None:
    done, _ = suite("properties/test_outputs.py", "--mode=tpu", "-n2", EMULATED_CHIPS="0")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mode tpu: no TPU is attached" in done.stderr


def test_modes_on_the_cpu_take_no_chip(suite: Suite, tmp_path: pathlib.Path) -> None:
    done, _ = suite("properties/test_outputs.py", "--mode=numpy", "--collect-only")

    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert not list(tmp_path.glob("attention-properties-*"))


@pytest.mark.parametrize("file", ["transformations", "invariances"])
def test_programs_lower_and_hold_in_the_arithmetic_of_a_tpu(suite: Suite, file: str) -> None:
    """Every program that these properties run on a TPU is lowered for one, and what it gives in
    the arithmetic of a TPU is judged right."""
    done, report = suite(
        *(f"properties/test_{file}.py", "--mode=tpu", "-n0"), EMULATED_GENERATION="v5e"
    )

    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert report["cases"] > 30
    assert all(name.startswith(file) for name in report["properties"])
    assert report["mode"] == "tpu"


class _JudgedAsOnATpu(Target):
    def arithmetic(self, case: Case, mode: str) -> Arithmetic:
        return super().arithmetic(case, "tpu")


def _judged_as_on_a_tpu(target: Target) -> Target:
    fields = dataclasses.fields(target)
    return _JudgedAsOnATpu(**{field.name: getattr(target, field.name) for field in fields})


# (batch, heads, q_len, kv_len, head_dim), causal, sm_scale, bias
_SHAPES: list[tuple[tuple[int, int, int, int, int], bool, float, bool]] = [
    ((1, 2, 33, 70, 16), False, 1.0, False),
    ((1, 1, 129, 257, 64), True, 1.0, True),
    ((1, 1, 1, 300, 8), False, 0.3, False),
    ((1, 1, 40, 17, 1), True, 0.3, True),
]


def _cases(dtype: str) -> list[Case]:
    return [
        Case(
            *(*shape, dtype, causal),
            sm_scale=scale,
            bias=Bias("float32", "normal") if bias else None,
            values=family,
            seed=seed,
        )
        for family in values.FAMILIES
        for seed in range(7)
        for shape, causal, scale, bias in _SHAPES
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arithmetic_of_a_tpu_is_within_its_model(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """And float32, which is rounded, outside of that of a CPU: the model matters."""
    emulated_chip.compute_as_a_tpu(monkeypatch, "v5e")
    # Programs are kept by target, and these are of another arithmetic.
    kernel = dataclasses.replace(Target.load(KERNEL))
    right, wrong = _judged_as_on_a_tpu(kernel), kernel
    cases = _cases(dtype)
    assert len(cases) >= 300

    judged = [checks.gradients(case, right, "numpy") for case in cases]
    assert [result.failure for result in judged if result.failure] == []
    if dtype == "float32":
        ordinary = [case for case in cases if case.values == "normal" and case.kv_len > 17]
        assert all(checks.outputs(case, wrong, "numpy").failure for case in ordinary)


@pytest.mark.parametrize(
    ("precision", "rounds", "operand", "product"),
    [
        (None, True, 0.0, 0.0),
        ("bfloat16", True, 0.0, 0.0),
        ("high", False, 2.0**-15, 3.0),
        ("highest", False, 0.0, 8.0),
    ],
)
def test_operands_follow_the_precision(
    precision: str | None, rounds: bool, operand: float, product: float
) -> None:
    case = Case(1, 1, 8, 8, 8)
    with jax.default_matmul_precision(precision):
        model = Target.load(KERNEL).arithmetic(case, "tpu")
    assert (model.rounds_inputs, model.operand, model.product) == (rounds, operand, product)
    # Products of bfloat16 are exact at any precision.
    narrow = Target.load(KERNEL).arithmetic(dataclasses.replace(case, dtype="bfloat16"), "tpu")
    assert (narrow.rounds_inputs, narrow.operand, narrow.product) == (False, 0.0, 0.0)


def test_a_target_may_declare_how_exact_a_tpu_is() -> None:
    usual = dataclasses.replace(Target.load(KERNEL))
    declared = dataclasses.replace(usual, arithmetic_differs={"exp_ulps": 4.0})
    case = Case(1, 1, 8, 8, 8)
    assert usual.arithmetic(case, "tpu").exp == 232 * 2.0**-24
    assert declared.arithmetic(case, "tpu").exp == 8 * 2.0**-24
    assert usual.arithmetic(case, "numpy").exp == 4 * 2.0**-24


@pytest.mark.parametrize("name", ["outputs", "gradients"])
def test_all_data_of_a_configuration_is_sent_before_any_is_judged(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    emulated_chip.compute_as_a_tpu(monkeypatch, "v5e")
    happened = []
    send = Program.send

    def sent(self: Program, *args: Any) -> Callable[[], Any]:
        happened.append("sent")
        fetch = send(self, *args)

        def fetched() -> Any:
            happened.append("fetched")
            return fetch()

        return fetched

    monkeypatch.setattr(Program, "send", sent)
    run = Run(dataclasses.replace(Target.load(KERNEL)), "tpu")
    run.begin(float("inf"), planned=1)
    run.explore(name, Case(1, 1, 16, 24, 8, "bfloat16"))

    assert happened == ["sent"] * 5 + ["fetched"] * 5
    assert run.tally.properties[name].cases == 5
    assert run.tally.properties[name].failures == 0


@pytest.mark.parametrize("when", ["sent", "fetched"])
def test_what_a_chip_raises_is_a_verdict(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    def fails(*leaves: Any) -> Any:
        raise RuntimeError("the chip is on fire")

    class Failing:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            return fails()

    result_of = fails if when == "sent" else lambda *leaves: [Failing()] * 4
    monkeypatch.setattr(Program, "_executable", lambda self, mode: result_of)
    target = dataclasses.replace(Target.load(KERNEL))
    result: Result = checks.outputs(Case(1, 1, 16, 24, 8), target, "tpu")

    assert result.failure is not None
    assert "running in tpu raised RuntimeError: the chip is on fire" in result.failure.message
    assert (result.mode, result.ran) == ("tpu", ["tpu"])
