"""`python -m properties replay` and `list`: verdicts, exit codes, and one line for bad input."""

import io
import json
import pathlib
from typing import Any

import pytest

from oracle.contract import RULES
from properties.cases import values
from properties.cases.case import Case
from properties.claims import checks
from properties.commands.main import main

CASE = Case(1, 1, 2, 3, 8)

RIGHT = "right_attention:attend"
WRONG = "right_attention:attend_wrongly"
TARGETS = """
import jax.numpy as jnp

def attend(q, k, v, ab=None, segment_ids=None, *, causal=False, sm_scale=1.0, block_sizes=None,
           debug=False):
    logits = sm_scale * jnp.einsum("bhqd,bhkd->bhqk", q, k)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdims=True)

def attend_wrongly(*arrays, **options):
    return attend(*arrays, **options) * 1.001
"""


@pytest.fixture(autouse=True)
def _targets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right_attention.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def _written(record: object) -> str:
    path = pathlib.Path("case.json")
    path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
    return str(path)


def _report(**fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "target": RIGHT,
        "property": "outputs",
        "mode": "interpret",
        "masked_rows": "zero",
        "case": CASE.to_dict(),
        "verdict": {"output": "o"},
        "environment": {},
    } | fields


def test_case_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", _written(CASE.to_dict()), "--target", RIGHT]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["outputs", *["gradients"] * 4]
    assert all(" pass " in line for line in lines[1:])


def test_case_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", _written(CASE.to_dict()), "--target", WRONG]) == 1

    assert "FAIL" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CASE.to_json().encode())))

    assert main(["replay", "-", "--target", WRONG]) == 1


def test_report_runs_under_its_property_and_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", _written(_report()), "--target", RIGHT]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:3] == ["outputs", "interpret", "o"]


def test_only_the_target_option_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(target="no_such_module:attend")

    assert main(["replay", _written(report), "--target", WRONG]) == 1

    first = capsys.readouterr().out.splitlines()[0]
    assert "no_such_module:attend" in first
    assert WRONG in first


def test_options_override_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    written = _written(_report(mode="tpu-interpret"))

    assert main(["replay", written, "--target", RIGHT, "--mode", "interpret"]) == 0

    assert "tpu-interpret" not in capsys.readouterr().out


def test_case_that_breaks_a_rule_runs_under_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case(1, 1, 8, 8, 8, breaks="second_order")

    assert main(["replay", _written(case.to_dict())]) == 0

    assert "refusals" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ({}, "schema: missing"),
        (CASE.to_dict() | {"batch": 0}, "batch"),
        (CASE.to_dict() | {"speed": 1}, "speed: unknown field"),
        (CASE.to_dict() | {"parameters": {"gradient_of": ["x"]}}, "gradient_of"),
        (CASE.to_dict() | {"parameters": {"edge": "x", "form": "1"}}, "edge"),
        (CASE.to_dict() | {"tensors": "none.npz"}, "none.npz"),
        (_report(schema=2), "schema"),
        (_report(mode="fast"), "mode"),
        (_report(mode=["numpy"]), "mode"),
        (_report(property="speed"), "property"),
        (_report(masked_rows="nan"), "masked_rows"),
        (_report(target=1), "target"),
        (_report(extra=1), "extra"),
        (_report(case=[]), "case"),
    ],
)
def test_bad_input_is_one_line(
    record: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", _written(record), "--target", RIGHT]) == 2

    message = capsys.readouterr().err
    assert words in message
    assert message.startswith("error: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "no_such_file.json"],
        ["replay", "."],
        ["replay", "case.json", "--target", "no_such_module:attend"],
        ["replay", "case.json", "--mode", "tpu"],
    ],
)
def test_what_cannot_be_used_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _written(CASE.to_dict())

    assert main(arguments) == 2

    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["replay"], ["replay", "-", "--mode=x"]])
def test_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    said = capsys.readouterr().out
    assert {*RULES, *checks.PROPERTIES, *values.FAMILIES, *values.BIAS_FAMILIES} <= set(
        said.split()
    )
    # Each with what it says.
    assert all(len(line.split()) > 1 for line in said.splitlines() if line.startswith("  "))
