"""`python -m properties shrink`: planted faults, crashes, hangs, real tensors, what is written."""

import io
import json
import pathlib
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from properties.cases.case import Bias, Case
from properties.commands.main import main
from properties.judging.targets import TargetError
from properties.shrinking.patience import Patience
from properties.shrinking.signature import PROCESS, Signature
from properties.shrinking.trials import Trials
from properties.tests.test_shrinking import BIG

CASE = Case(1, 1, 2, 3, 8)

# Not in a Pallas kernel, so that XLA runs it.
TARGETS = """
import os
import time

import jax.numpy as jnp

def attend(q, k, v, ab=None, segment_ids=None, *, causal=False, sm_scale=1.0, block_sizes=None,
           debug=False):
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    if ab is not None:
        logits = logits + ab
    logits = sm_scale * logits
    if causal:
        rows, keys = jnp.arange(q.shape[2]), jnp.arange(k.shape[2])
        logits = jnp.where(rows[:, None] >= keys, logits, -jnp.inf)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdims=True)

def crash(q, k, *others, **options):
    if k.shape[2] > 2:
        os.abort()
    return attend(q, k, *others, **options)

def hang(q, k, *others, **options):
    while k.shape[2] > 2:
        time.sleep(1)
    return attend(q, k, *others, **options)

def wrong_for_large_values(q, k, v, *others, **options):
    return attend(q, k, jnp.where(v > 8, 2 * v, v), *others, **options)
"""


@pytest.fixture(autouse=True)
def _targets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shrunk_attention.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def _report(target: str, case: Case, **fields: Any) -> str:
    report = {
        "schema": 1,
        "target": target,
        "property": "outputs",
        "mode": "auto",
        "masked_rows": "zero",
        "case": case.to_dict(),
        "verdict": {"output": "o", "index": [0, 0, 0, 0], "message": "is beyond the bound"},
        "environment": {},
    }
    path = pathlib.Path("report.json")
    path.write_text(json.dumps(report | fields), encoding="utf-8")
    return str(path)


def _written(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case and the report that were written."""
    (case,) = folder.glob("*.case.json")
    (report,) = folder.glob("*.report.json")
    assert case.name.removesuffix(".case.json") == report.name.removesuffix(".report.json")
    return json.loads(case.read_text("utf-8")), json.loads(report.read_text("utf-8"))


def test_a_planted_fault(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = "properties.faults.catalogue:bias_of_the_first_head"
    case = replace(BIG, block_sizes=None, bias=Bias("bfloat16", "normal"))

    assert main(["shrink", _report(fault, case), "--target", fault, "--out", "found/here"]) == 1

    shrunk, report = _written(tmp_path / "found" / "here")
    assert Case.from_json(shrunk).configuration[:5] == (1, 2, 1, 2, 1)
    assert report["case"] == shrunk
    assert report["target"] == fault
    assert report["verdict"]["output"] == "o"
    printed = capsys.readouterr().out
    assert "not needed: batch 4" in printed
    assert "essential: bias" in printed
    assert "python -m properties replay" in printed
    (path,) = (tmp_path / "found" / "here").glob("*.report.json")
    assert main(["replay", str(path), "--target", fault]) == 1
    assert main(["replay", str(path)]) == 0


def test_what_does_not_fail_here(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(CASE.to_json()))

    assert main(["shrink", "-", "--out", "found"]) == 0

    assert "does not fail here" in capsys.readouterr().out
    assert not (tmp_path / "found").exists()


def test_a_crash_is_reduced(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "shrunk_attention:crash"
    path = _report(
        "elsewhere:attend",
        Case(2, 1, 9, 9, 8),
        verdict={"output": PROCESS, "message": "was ended by SIGABRT"},
    )

    assert main(["shrink", path, "--target", target, "--mode", "interpret"]) == 1

    shrunk, report = _written(tmp_path)
    assert shrunk["kv_len"] == 3
    assert Case.from_json(shrunk).configuration[:5] == (1, 1, 1, 3, 1)
    assert report["verdict"]["message"] == "was ended by SIGABRT"
    assert report["masked_rows"] == "zero"
    assert "reported for elsewhere:attend" in capsys.readouterr().out


def test_a_hang_is_a_failure_and_ends_its_process() -> None:
    with Trials(["outputs"], "shrunk_attention:hang", "interpret") as fails:
        assert fails(replace(CASE, kv_len=2)) is None
    with Trials(["outputs"], "shrunk_attention:hang", "interpret", patience=Patience(1)) as fails:
        assert fails(CASE) == Signature("outputs", PROCESS, "gave nothing within N s")
        report = fails.reports[CASE]
    assert report["verdict"]["message"] == "gave nothing within 1 s"
    assert report["masked_rows"] == "any"


@pytest.mark.parametrize("target", ["no_such_module:attend", "shrunk_attention:absent"])
def test_a_target_that_cannot_be_loaded(target: str) -> None:
    with Trials(["outputs"], target, "auto") as fails, pytest.raises(TargetError):
        fails(CASE)


def test_tensors_are_cut_and_made_plain(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: rng.normal(size=(2, 2, 24, 8)).astype(np.float32) for name in "qkv"
    }
    arrays["v"][1, 0, 5, 3] = 9.25
    call = json.dumps({"causal": True, "sm_scale": 0.5})
    np.savez("real.npz", call=call, ab=np.zeros((2, 2, 24, 24), np.float32), **arrays)

    options = ["--target", "shrunk_attention:wrong_for_large_values", "--mode", "interpret"]
    assert main(["shrink", "real.npz", *options, "--out", "found"]) == 1

    shrunk, report = _written(tmp_path / "found")
    assert report["property"] == "outputs"
    assert shrunk["bias"] is None
    assert not shrunk["causal"]
    assert "essential: values of the file" in capsys.readouterr().out
    sizes = Case.from_json(shrunk).configuration[:5]
    assert np.prod(sizes) <= 8, sizes
    with np.load(tmp_path / "found" / shrunk["tensors"]) as found:
        assert found["v"].max() == 9
        assert np.count_nonzero(found["v"]) == 1
        assert not found["q"].any()
    path = next((tmp_path / "found").glob("*.report.json"))
    assert main(["replay", str(path), *options]) == 1


def test_tensors_of_which_the_values_do_not_matter(tmp_path: pathlib.Path) -> None:
    fault = "properties.faults.catalogue:causal_sees_one_ahead"
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: rng.normal(size=(1, 1, 8, 8)).astype(ml_dtypes.bfloat16).view(np.uint16)
        for name in "qkv"
    }
    np.savez("real.npz", call=json.dumps({"causal": True, "dtype": "bfloat16"}), **arrays)

    assert main(["shrink", "real.npz", "--target", fault, "--out", "found"]) == 1

    shrunk, _ = _written(tmp_path / "found")
    assert "tensors" not in shrunk
    assert (shrunk["q_len"], shrunk["kv_len"], shrunk["dtype"]) == (1, 1, "float32")
