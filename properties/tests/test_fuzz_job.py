"""The nightly job as it is run: faults of every kind, ends of every kind, and going on."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import properties
from properties.cases.case import Case
from properties.commands.main import main
from properties.drawing.space import Space
from properties.fuzzing.ledger import Ended, Ledger
from properties.fuzzing.slot import Slot
from properties.shrinking.patience import Patience

TARGETS = """
import os
import re
import signal
import time

import jax
import jax.numpy as jnp


def attend(q, k, v, ab=None, segment_ids=None, *, causal=False, sm_scale=1.0, block_sizes=None,
           debug=False):
    logits = sm_scale * jnp.einsum("bhqd,bhkd->bhqk", q, k)
    visible = jnp.ones(logits.shape, bool)
    if causal:
        visible = jnp.tril(visible)
    lowest = jnp.asarray(-jnp.inf, logits.dtype)  # no float64 under x64
    m = jax.lax.stop_gradient(jnp.where(visible, logits, lowest).max(-1, keepdims=True))
    weights = jnp.where(visible, jnp.exp(jnp.where(visible, logits - m, 0)), 0)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdims=True)


@jax.custom_vjp
def twice(v):
    return v


twice.defvjp(lambda v: (v, None), lambda _, g: (2 * g,))


def with_faults(q, k, v, *others, causal=False, **options):
    if q.shape[1] == 2:
        os.abort()
    if q.shape[3] >= 64:
        v = twice(v)
    o = attend(q, k, v, *others, causal=causal, **options)
    return 1.25 * o if causal else o


def that_lets_no_thread_run(q, *others, **options):
    if q.shape[3] > 4:
        re.match("(a+)+$", 60 * "a" + "b")
    return attend(q, *others, **options)


def that_ends(q, *others, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def that_hangs(q, *others, **options):
    while q.shape[3] > 4:
        time.sleep(0.1)
    return attend(q, *others, **options)


class Adapter:
    features = frozenset({"causal", "gradients"})
    dtypes = ("float32",)

    def __init__(self, call):
        self.call = call


correct, faulty, hanging = Adapter(attend), Adapter(with_faults), Adapter(that_hangs)
stuck, ending = Adapter(that_lets_no_thread_run), Adapter(that_ends)
"""

CASE = Case(1, 1, 2, 3, 8)


@pytest.fixture(autouse=True)
def _targets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fuzzed_attention.py").write_text(TARGETS, encoding="utf-8")
    root = pathlib.Path(properties.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(root))))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def _started(target: str, budget: str = "10m", *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "properties", "fuzz", "--budget", budget, "--out", "out"]
    command += ["--target", f"fuzzed_attention:{target}", "--mode", "interpret", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait(until: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def _state() -> dict[str, Any]:
    return json.loads(pathlib.Path("out/state.json").read_text("utf-8"))


def _reports() -> dict[str, dict[str, Any]]:
    """The reduced reports, by the output that fails."""
    reports = (json.loads(path.read_text("utf-8")) for path in _report_files())
    return {each["verdict"]["output"]: each for each in reports}


def _report_files() -> list[pathlib.Path]:
    return list(pathlib.Path("out/reports").glob("*.report.json"))


def _balanced(said: str) -> dict[str, int]:
    """What the journals say, all of which is accounted for."""
    (line,) = re.findall(r"^journal .*$", said, re.MULTILINE)
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", line)}
    assert counts.pop("begun") == sum(counts.values())
    assert "open" not in counts
    return counts


def test_faults_are_reduced_and_the_job_ends_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = _started("faulty", "10m", "--workers", "1")
    _wait(lambda: {"process", "o", "dv"} <= set(_reports()))
    job.send_signal(signal.SIGINT)
    said, _ = job.communicate(timeout=60)

    assert job.returncode == 1
    assert "ended by SIGINT" in said
    assert "Traceback" not in said
    counts = _balanced(said)
    assert counts["crashed"] >= 1
    assert counts["hung"] == 0
    reports = _reports()
    assert Case.from_json(reports["process"]["case"]).configuration[:5] == (1, 2, 1, 1, 1)
    assert reports["process"]["verdict"]["message"] == "was ended by SIGABRT"
    assert reports["dv"]["case"]["head_dim"] == 64
    assert reports["o"]["case"]["causal"]
    assert "cases" in said
    assert "python -m properties replay" in said
    crashed = next(each for each in _state()["findings"] if "process" in str(each["minimal"]))
    # The end of the process is in its log.
    assert "Fatal Python error: Aborted" in pathlib.Path("out/logs", crashed["log"]).read_text()
    for path in _report_files():
        if "process" not in path.read_text("utf-8"):
            options = ["--target", "fuzzed_attention:faulty"]
            assert main(["replay", str(path), *options]) == 1
            case = path.with_name(path.name.replace(".report.", ".case."))
            assert json.loads(case.read_text("utf-8"))["schema"] == 1

    before = _state()
    again = _started("faulty", "8s", "--workers", "1", "--report-json", "run.json")
    said, _ = again.communicate(timeout=120)

    assert again.returncode == 1
    assert "resumed in out" in said
    after = _state()
    assert _balanced(said)["ended"] >= counts["ended"]
    assert after["seed"] == before["seed"]
    assert after["process"] > before["process"]
    for one in before["findings"]:
        if one["minimal"]:
            (same,) = [each for each in after["findings"] if each["minimal"] == one["minimal"]]
            assert same["files"] == one["files"]
            assert same["count"] >= one["count"]
    run = json.loads(pathlib.Path("run.json").read_text("utf-8"))
    assert run["verdict"] == "fail"
    assert run["fuzz"]["journal"]["ended"] >= counts["ended"]
    assert {"process", "o", "dv"} <= {each["verdict"]["output"] for each in run["failures"]}
    capsys.readouterr()


def test_a_job_that_is_killed_goes_on_without_a_false_alarm() -> None:
    job = _started("correct", "10m", "--workers", "1")
    journals = pathlib.Path("out/journal")
    _wait(lambda: any(path.stat().st_size > 5000 for path in journals.glob("*.jsonl")))
    job.kill()
    job.communicate(timeout=60)

    def bytes_written() -> int:
        return sum(path.stat().st_size for path in journals.glob("*.jsonl"))

    # Its worker ends with it.
    written = -1
    while written != (written := bytes_written()):
        time.sleep(0.5)
    records = [json.loads(line) for path in journals.glob("*.jsonl") for line in path.open("rb")]
    begun = sum("begin" in each for each in records)

    again = _started("correct", "6s", "--workers", "1")
    said, _ = again.communicate(timeout=120)

    assert again.returncode == 0, said
    assert "resumed in out" in said
    assert said.rstrip().endswith("no failure")
    counts = _balanced(said)
    assert sum(counts.values()) >= begun
    assert counts["interrupted"] <= 2
    assert list(journals.iterdir()) == []


def test_another_target_needs_another_folder(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("out").mkdir()
    state: dict[str, Any] = {"schema": 1, "target": "other:attend", "seed": "0", "process": 1}
    state |= {"ledger": {}, "findings": [], "journals": {}}
    pathlib.Path("out/state.json").write_text(json.dumps(state), encoding="utf-8")
    assert main(["fuzz", "--budget", "1s", "--out", "out"]) == 2
    assert "holds a run of other:attend" in capsys.readouterr().err


class _Watched:
    """One worker that runs what it is asked to, and then draws."""

    def __init__(self, target: str) -> None:
        self.ended: list[Ended] = []
        self.ledger = Ledger(Space(("float32",), True, False, False, False))
        self.slot = Slot()
        self.slot.join(self.ledger, self.ended.append)
        folder = pathlib.Path("watched")
        folder.mkdir()
        self.log = folder / "log"
        name = f"fuzzed_attention:{target}"
        self.slot.start(1, name, "interpret", None, folder, self.log)
        plan: dict[str, Any] = {key: {} for key in ("used", "covering", "visited")}
        plan |= {"done": [], "avoid": [], "generations": ["v5e"], "seed": "0", "process": 1}
        self.slot.tell(plan | {"journal": str(folder), "part": 0, "parts": 1})

    def ask(self, case: Case) -> None:
        asked = {"id": "asked", "property": "outputs", "case": case.to_dict()}
        self.slot.replay(asked)

    def is_at_what_was_asked(self) -> bool:
        case = self.ledger.open.get(1)
        return case is not None and case.replay == "asked"

    def watch(self, until: Callable[[], bool], patience: Patience) -> None:
        def ended() -> bool:
            if not self.slot.free:
                self.slot.watch(lambda name: patience, lambda case: False)
            return until()

        _wait(ended)


def test_a_hang_is_ended_and_says_where_it_was() -> None:
    watched = _Watched("hanging")
    watched.ask(CASE)
    watched.watch(lambda: watched.slot.free, Patience(1.0, 1.0))
    (lost,) = [each for each in watched.ended if each.how]
    assert lost.hung
    assert lost.begun.case.head_dim > 4
    assert lost.how == "gave nothing within 1 s"
    assert "that_hangs" in watched.log.read_text()
    assert watched.ledger.counts["hung"] == 1
    assert not watched.ledger.open


def test_a_hang_that_reads_nothing_does_not_hold_the_job_up() -> None:
    watched = _Watched("stuck")
    watched.ask(CASE)
    watched.watch(watched.is_at_what_was_asked, Patience(60.0, 60.0))
    for _ in range(20):  # more than the pipe takes
        watched.slot.tell({"visited": {}, "filler": 100_000 * " "})
    watched.watch(lambda: watched.slot.free, Patience(1.0, 1.0))
    assert watched.ledger.counts["hung"] == 1


@pytest.mark.parametrize(
    ("by", "how"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGTERM, "interrupted")],
)
def test_a_worker_that_is_ended_leaves_its_case(by: signal.Signals, how: str) -> None:
    watched = _Watched("hanging")
    watched.ask(CASE)
    watched.watch(watched.is_at_what_was_asked, Patience(60.0, 60.0))
    child = watched.slot._child
    assert child is not None
    os.kill(child.pid, by)
    watched.watch(lambda: watched.slot.free, Patience(60.0, 60.0))
    (lost,) = [each for each in watched.ended if each.how]
    assert (lost.how, lost.hung) == (how, False)
    assert lost.begun.case == CASE


def test_a_case_that_asks_its_process_to_end_is_a_failure() -> None:
    job = _started("ending", "10m", "--workers", "1")
    _wait(lambda: bool([*pathlib.Path("out/found").glob("*.json"), *_report_files()]))
    job.send_signal(signal.SIGINT)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 1
    assert "was ended by SIGTERM" in said
    assert _balanced(said)["interrupted"] >= 2


def test_a_case_that_is_interrupted_is_none_that_hangs() -> None:
    watched = _Watched("hanging")
    watched.ask(CASE)
    watched.watch(watched.is_at_what_was_asked, Patience(60.0, 60.0))
    watched.slot.stop()
    watched.slot.kill()
    assert watched.ended[-1].how == "interrupted"
    assert not watched.ledger.open
    assert watched.ledger.counts["hung"] == watched.ledger.counts["crashed"] == 0
