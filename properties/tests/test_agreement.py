"""A disagreement between engines is found, whichever is wrong, and names both values."""

import dataclasses
import functools
import io
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from properties import engines
from properties.cases.case import Blocks, Case
from properties.claims import checks
from properties.commands.main import main
from properties.judging.targets import KERNEL, Target
from properties.session import failure

CASE = Case(1, 1, 8, 8, 8)


def _target() -> Target:
    """A new one each time: programs are kept by target, and these tests plant faults in theirs."""
    return Target.load(KERNEL)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Any], Any]], None]:
    """Makes the results of one engine go through a function, as if it computed wrongly."""

    def planted(mode: str, fault: Callable[[Any], Any]) -> None:
        run = engines.Program.run

        def faulty(program: engines.Program, asked: str, *args: Any) -> Any:
            got = run(program, asked, *args)
            return fault(got) if asked == mode else got

        monkeypatch.setattr(engines.Program, "run", faulty)

    return planted


def _with(got: dict[str, Any], name: str, index: tuple[int, ...], value: float) -> dict[str, Any]:
    changed = got[name].copy()
    changed[index] = value
    return got | {name: changed}


def test_engines_agree_on_a_right_target() -> None:
    result = checks.engines(CASE, _target(), "auto")

    assert result.failure is None
    assert result.ran == ["numpy", "interpret"]
    # Everything that the gradients property judges, once in each engine.
    assert [each.output for each in result.verdicts] == ["o", "o", "m", "l", "dq", "dk", "dv"] * 2


@pytest.mark.parametrize(("wrong", "right"), [("numpy", "interpret"), ("interpret", "numpy")])
@pytest.mark.parametrize("output", ["o", "dk"])
def test_wrong_engine_is_named_with_both_values(
    plant: Any, wrong: str, right: str, output: str
) -> None:
    target = _target()
    index = (0, 0, 3, 2)
    seen = checks.gradients(CASE, target, right)
    value = seen.got[output][index]
    plant(wrong, functools.partial(_with, name=output, index=index, value=7.0))

    result = checks.engines(CASE, target, "auto")

    assert result.failure is not None
    verdict = result.failure
    assert (verdict.output, verdict.index, verdict.got) == (output, index, 7.0)
    assert verdict.ratio is not None
    assert verdict.ratio > 1
    assert f"in {wrong} " in verdict.message
    named = float(verdict.message.partition(f"{right} is right: ")[2])
    assert np.float32(named) == value


def test_wrong_residual_of_one_engine_is_named_with_the_saved_value(plant: Any) -> None:
    target = _target()
    saved = checks.gradients(CASE, target, "numpy").got["residuals"]

    def shifted(got: dict[str, Any]) -> dict[str, Any]:
        o, l, m = got["residuals"]
        return got | {"residuals": (o + 1, l, m)}

    plant("interpret", shifted)
    verdict = checks.engines(CASE, target, "auto").failure

    assert verdict is not None
    assert verdict.output == "o"
    named = float(verdict.message.partition("numpy is right: ")[2])
    assert np.float32(named) == saved[0][verdict.index]


def test_program_that_only_the_fast_engine_runs(plant: Any) -> None:
    def refuse(got: Any) -> Any:
        raise NotImplementedError("program_id cannot be lowered here")

    plant("interpret", refuse)
    verdict = checks.engines(CASE, _target(), "auto").failure

    assert verdict is not None
    assert verdict.output == "call"
    assert "in interpret" in verdict.message
    assert "program_id cannot be lowered here" in verdict.message
    assert verdict.message.endswith("numpy is right")


def test_what_is_wrong_in_both_engines_fails(plant: Any) -> None:
    plant("numpy", functools.partial(_with, name="o", index=(0, 0, 0, 0), value=7.0))
    plant("interpret", functools.partial(_with, name="o", index=(0, 0, 0, 0), value=7.0))

    result = checks.engines(CASE, _target(), "auto")

    assert result.failure is not None
    assert (result.failure.output, result.failure.got) == ("o", 7.0)
    assert not result.skipped


@pytest.mark.parametrize("mode", ["interpret", "tpu-interpret", "tpu"])
def test_other_engines_are_not_run_where_one_is_asked_for(mode: str) -> None:
    result = checks.engines(CASE, _target(), mode)

    assert mode in result.skipped
    assert result.ran == []


def test_what_the_fast_engine_cannot_run_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> Any:
        raise engines.Unsupported("no rule for scatter")

    monkeypatch.setattr(engines.Program, "run", unsupported)
    result = checks.engines(CASE, _target(), "auto")

    assert result.skipped == "no rule for scatter"


def test_case_with_forward_blocks_alone_is_compared_in_what_it_gives() -> None:
    blocks = Blocks(block_q=8, block_k_major=8, block_k=8, block_b=1)

    result = checks.engines(dataclasses.replace(CASE, block_sizes=blocks), _target(), "auto")

    assert [each.output for each in result.verdicts] == ["o", "o", "m", "l"] * 2


def test_printed_command_replays_the_disagreement(
    plant: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("interpret", functools.partial(_with, name="dv", index=(0, 0, 1, 1), value=7.0))
    target = _target()
    result = checks.engines(CASE, target, "auto")
    assert result.failure is not None

    text = failure.text(failure.report(result, target, result.failure))
    command = next(line for line in text.splitlines() if "replay:" in line)
    _, echo, report, _, *python, replay, source, mode, engine, masked, zero = shlex.split(command)
    assert (echo, python) == ("echo", ["python", "-m", "properties"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(report.encode())))

    assert main([replay, source, mode, engine, masked, zero]) == 1

    assert result.failure.message in capsys.readouterr().out
