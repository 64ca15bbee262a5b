"""Built-in faults: each can be planted in the kernel of today, and is found."""

import dataclasses
import json
import pathlib
import re

import pytest

import kernel
from properties.cases.case import Case
from properties.claims import checks
from properties.commands import sensitivity
from properties.commands.main import main
from properties.faults import catalogue, planting
from properties.faults.planting import Edit, PlantingError, edited, planted, planted_package
from properties.judging.targets import KERNEL, Target

CASE = Case(1, 1, 8, 8, 8, causal=True)


@pytest.mark.parametrize("name", catalogue.FAULTS)
def test_every_fault_can_be_planted(name: str) -> None:
    changes = edited(catalogue.FAULTS[name].edits)

    assert changes
    for module, source in changes.items():
        assert source != planting.source_of(module)
        compile(source, module, "exec")


def test_there_are_many_faults_each_said_once() -> None:
    said = [fault.says for fault in catalogue.FAULTS.values()]

    assert len(said) >= 60
    assert len(set(said)) == len(said)


def test_sources_name_a_report() -> None:
    sources = [fault.source for fault in catalogue.FAULTS.values() if fault.source]

    assert len(sources) >= 30
    for source in sources:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+| PR#\d+| commit [0-9a-f]{10})", source), source


def test_a_fault_is_in_the_planted_kernel_alone() -> None:
    before = kernel.flash_attention
    target = Target.load(catalogue.target_name("causal_sees_one_ahead"))

    wrong = checks.outputs(CASE, target, "numpy")
    right = checks.outputs(CASE, Target.load(KERNEL), "numpy")

    assert wrong.failure is not None
    assert right.failure is None
    assert target.strict
    assert kernel.flash_attention is before
    assert planting.importlib.import_module("kernel") is kernel


def test_an_unchanged_kernel_holds() -> None:
    source = planting.source_of("tile")

    target = planted({"tile": source}, "the kernel itself")

    assert target.call is not kernel.flash_attention
    assert checks.gradients(CASE, target, "numpy").failure is None


def test_an_edit_that_does_not_fit_says_so() -> None:
    with pytest.raises(PlantingError, match="kernel has changed"):
        edited((Edit("tile", "no such text", ""),))


def test_what_importing_raises_leaves_the_kernel_as_it_was() -> None:
    with pytest.raises(SyntaxError):
        planted_package({"tile": "def"})

    assert planting.importlib.import_module("kernel") is kernel


def test_a_killed_fault_is_told_with_its_case(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "table.json"

    code = main(["sensitivity", "--fault", "causal_hides_the_diagonal", "--json", str(written)])

    found = json.loads(written.read_text())["faults"]["causal_hides_the_diagonal"]
    assert code == 0
    assert found["killed_by"] == "outputs"
    assert found["worst_ratio"] > 1
    assert Case.from_json(json.dumps(found["case"])).causal
    assert "1 of 1 faults killed" in capsys.readouterr().out


def test_several_are_told_in_order() -> None:
    names = ["nan_scale_accepted", "scale_ignored"]

    found = list(sensitivity.run(names))

    assert [each.fault for each in found] == names
    assert [each.killed_by for each in found] == ["refusals", "outputs"]
    assert all(0 < each.cpu_seconds < 60 for each in found)


def test_survivors_come_first_and_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = sensitivity.Outcome("scale_ignored", "outputs", 3, 0.5, 7.0)
    survivor = sensitivity.Outcome("bias_ignored", None, 3000, 90.0)
    monkeypatch.setattr(sensitivity, "run", lambda names: [killed, survivor])

    code = main(["sensitivity"])

    first, second, total = capsys.readouterr().out.splitlines()
    assert code == 1
    assert first.startswith("bias_ignored")
    assert "SURVIVED" in first
    assert second.startswith("scale_ignored")
    assert total.startswith("1 of 2 faults killed")


def test_a_run_that_was_ended_is_no_kill() -> None:
    ended = sensitivity.Outcome("bias_ignored", None, 0, 0.0, message="its run was ended")

    first, why, total = "\n".join(sensitivity.table([ended])).splitlines()

    assert "SURVIVED" in first
    assert why.strip() == "its run was ended"
    assert total == "0 of 1 faults killed"


def test_unknown_fault_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "--fault", "bias_ignord"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_suite_that_cannot_run_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(
        catalogue.FAULTS["scale_ignored"], edits=(Edit("tile", "no such text", ""),)
    )
    monkeypatch.setitem(catalogue.FAULTS, "scale_ignored", broken)
    monkeypatch.setattr(catalogue, "target_name", lambda fault: "properties.faults.catalogue:none")

    with pytest.raises(ValueError, match="scale_ignored"):
        sensitivity.plant("scale_ignored")
