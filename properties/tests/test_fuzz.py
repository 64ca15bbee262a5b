"""The parts of the nightly job, each by itself: nothing but small cases is run."""

import json
import pathlib
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from properties import test_outputs, test_refusals
from properties.cases.case import Bias, Case
from properties.claims import checks
from properties.commands.main import main
from properties.drawing import breaking, space
from properties.fuzzing import entries, journal, suite
from properties.fuzzing.book import Book
from properties.fuzzing.exchange import Exchange
from properties.fuzzing.findings import Finding, Findings, contains
from properties.fuzzing.folder import Folder
from properties.fuzzing.ledger import Ledger, Open
from properties.fuzzing.reducer import Reducer
from properties.fuzzing.shards import Shard, shard_of
from properties.fuzzing.turns import Turns
from properties.judging.targets import KERNEL, Target
from properties.judging.verdict import Verdict
from properties.session.profiles import SHARES
from properties.shrinking.signature import PROCESS

CASE = Case(1, 1, 2, 3, 8)


def _report(case: Case, name: str = "outputs", output: str = "o", message: str = "") -> Any:
    verdict = Verdict(output, message or "is beyond the bound", None if message else (0, 0, 0, 0))
    return {
        "schema": 1,
        "target": KERNEL,
        "property": name,
        "mode": "auto",
        "masked_rows": "zero",
        "case": case.to_dict(),
        "verdict": verdict.to_dict(),
        "environment": {},
    }


# Shards.


@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        ("0/1", {}, Shard(0, 1)),
        ("3/4", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "2"}, Shard(3, 4)),
        (None, {}, Shard(0, 1)),
        (None, {"JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "2"}, Shard(1, 2)),
    ],
)
def test_a_shard(option: str | None, environment: dict[str, str], expected: Shard) -> None:
    assert shard_of(option, environment) == expected


@pytest.mark.parametrize("option", ["4/4", "-1/4", "1", "1/0", "a/b", "1/2/3", "", "１/２"])
def test_what_is_no_shard(option: str) -> None:
    with pytest.raises(ValueError, match="I from 0 to N - 1"):
        shard_of(option, {})


def test_an_indexed_job_without_its_completions() -> None:
    with pytest.raises(ValueError, match="JOB_COMPLETIONS is not"):
        shard_of(None, {"JOB_COMPLETION_INDEX": "0"})


# What is drawn.


def test_every_property_is_drawn_by_some_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_BATCH", 12)
    collector = suite.Collector(Target.load(KERNEL), ("v5e",))
    names = Counter(
        job.property
        for test in suite.tests()
        for example in test.examples(collector, "seed", None)
        for job in example
    )
    assert set(names) == set(checks.PROPERTIES)


def test_the_suite_is_left_as_it_was() -> None:
    profile, kept = settings.get_current_profile_name(), dict(vars(test_outputs.test_outputs))
    (test,) = (each for each in suite.tests() if each.name == "test_outputs.py::test_outputs")

    assert test.examples(suite.Collector(Target.load(KERNEL), ("v5e",)), "seed")
    assert settings.get_current_profile_name() == profile
    assert vars(test_outputs.test_outputs) == kept


def test_tests_differ_in_more_than_their_shard() -> None:
    names = [test.name for test in suite.tests()]
    assert len(set(names)) == len(names)
    assert names.count("test_outputs.py::test_outputs") == 1
    rules = [name for name in names if name.startswith("test_refusals.py::test_rule[")]
    assert len(rules) == len(breaking.BREAKERS)


def test_seeds_tell_examples_apart_and_repeat_them() -> None:
    collector = suite.Collector(Target.load(KERNEL), ("v5e",))
    (test,) = (each for each in suite.tests() if each.name == "test_outputs.py::test_outputs")
    one, again, other = (test.examples(collector, seed) for seed in ("a", "a", "b"))
    assert one == again
    # Hypothesis begins with the simplest.
    assert not {job.case for example in one[1:] for job in example} & {
        job.case for example in other[1:] for job in example
    }


def test_collecting_leaves_the_tests_as_they_are() -> None:
    before = test_outputs.test_outputs.hypothesis.inner_test
    for test in suite.tests():
        if test.function is test_outputs.test_outputs:
            test.examples(suite.Collector(Target.load(KERNEL), ()), "seed")
    assert test_outputs.test_outputs.hypothesis.inner_test is before


def test_time_is_shared_by_files_then_by_tests() -> None:
    tests = [test for test in suite.tests() if test.drawn]
    turns, spent = Turns(tests, {}), defaultdict[str, float](float)
    for _ in range(4000):
        test = turns.next()
        assert test is not None
        # Some take a hundred times as long as others.
        seconds = 1.0 if "memory" in test.file else 0.01
        turns.took(test, seconds)
        spent[test.file] += seconds
    total = sum(SHARES.get(file, 1.0) for file in spent)
    for file, seconds in spent.items():
        expected = SHARES.get(file, 1.0) / total * sum(spent.values())
        assert seconds == pytest.approx(expected, abs=1.1)


def test_fixed_lists_of_cases_are_divided_and_not_run_twice() -> None:
    tests = suite.tests()
    fixed = {test.name for test in tests if not test.drawn}
    parts = []
    for part in range(3):
        turns, mine = Turns(tests, {}, part=part, parts=3), []
        while (test := turns.next()) is not None:
            mine += [] if test.drawn else [test.name]
            turns.end(test)
        parts += mine
    assert sorted(parts) == sorted(fixed)
    turns = Turns(tests, {}, done=fixed)
    first = turns.next()
    assert first is not None
    assert first.drawn


# Journals.


def test_records_survive_a_torn_one(tmp_path: pathlib.Path) -> None:
    written = journal.Journal(tmp_path, 7)
    tail = journal.Tail(tmp_path / journal.name(7))
    written.write({"done": "a"})
    assert list(tail.records()) == [{"done": "a"}]
    with tail.path.open("a") as file:
        file.write('{"end": 1, "seco')
    assert list(tail.records()) == []
    journal.append(tail.path, {"interrupted": 1})
    assert list(tail.records()) == [{"interrupted": 1}]


@pytest.mark.parametrize(
    "line", [b"\xff\x00{", b"[]", b"3", b'{"begin": 1}', b'{"end": 1, "seconds": 2}', b'{"x": 1}']
)
def test_a_line_that_is_no_record_is_passed_over(line: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / journal.name(7)
    path.write_bytes(line + b'\n{"done": "a"}\n')
    assert list(journal.Tail(path).records()) == [{"done": "a"}]


def test_a_journal_goes_on_in_another_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 50)
    written = journal.Journal(tmp_path, 7)
    tail = journal.Tail(tmp_path / journal.name(7))
    records = [{name: number} for number in range(20) for name in ("done", "interrupted")]
    for record in records:
        written.write(record)
    assert list(tail.records()) == records
    assert len(tail.read) > 3
    assert all(path.exists() for path in tail.read)


def test_a_ledger_goes_on_where_it_was_saved() -> None:
    of = space.Space()
    begin = {"time": 0, "property": "outputs", "case": CASE.to_dict(), "folder": "", "test": "t"}
    result = checks.outputs(CASE, Target.load(KERNEL), "numpy")
    end = {"seconds": 0.5, "cpu_seconds": 0.4, "stages": {"run": 0.1}}
    ledger = Ledger(of)
    for record in (
        {"begin": 1, **begin},
        {"end": 1, **end, "result": journal.outcome(result)},
        {"begin": 2, **begin},
        {"lost": 2, "how": "was ended by SIGABRT", "hung": False, "seconds": 1.0, "log": "l"},
        {"done": "t"},
        {"begin": 3, **begin},
    ):
        ledger.take(1, record)
    assert ledger.balance == ("3 begun = 1 ended + 1 crashed + 0 hung + 0 interrupted + 1 open")

    again = Ledger(of)
    assert again.restore(json.loads(json.dumps(ledger.data())))
    again.take(1, {"interrupted": 3})

    assert again.balance == "3 begun = 1 ended + 1 crashed + 0 hung + 1 interrupted"
    assert again.tally.properties["outputs"].cases == 2
    assert again.tally.ratios == ledger.tally.ratios
    assert again.tally.ratios["o", "float32"].elements > 0
    assert again.visited["outputs"].visited == ledger.visited["outputs"].visited > 0
    assert again.done == {"t"}


def test_a_case_that_was_interrupted_stays_to_be_run(tmp_path: pathlib.Path) -> None:
    ledger, folder = Ledger(space.Space()), Folder(tmp_path)
    exchange = Exchange(folder.examples, None, b"key", print)
    reducer = Reducer(KERNEL, "auto", "zero")
    book = Book(folder, exchange, reducer, ledger, (KERNEL, "auto", "zero"), print)
    begin = {"begin": 1, "property": "outputs", "case": CASE.to_dict(), "folder": "."}
    ledger.take(1, begin)
    ended = ledger.take(1, {"interrupted": 1})
    assert ended is not None
    book.heard(ended)
    assert [Open.from_data(each.to_data()).case for each in book.left] == [CASE]
    assert ledger.interruptions(book.left[0]) == 1
    ledger.take(2, begin)
    end = {"end": 1, "seconds": 1.0, "cpu_seconds": 1.0, "stages": {}, "skipped": "for a test"}
    ended = ledger.take(2, end)
    assert ended is not None
    book.heard(ended)
    assert book.left == []


# Findings.


def _reduced(findings: Findings, report: Any, minimal: Case, **fields: Any) -> Finding:
    finding = findings.add(report, "drawn")
    assert finding is not None
    finding.minimal = _report(minimal, report["property"], report["verdict"]["output"]) | {
        "verdict": report["verdict"]
    }
    finding.settled = "reduced"
    for name, value in fields.items():
        setattr(finding, name, value)
    return finding


def test_a_failure_is_known_if_it_could_be_reduced_to_a_known_one() -> None:
    findings = Findings()
    biased = replace(CASE, bias=Bias("float32", "normal"))
    finding = _reduced(findings, _report(biased), replace(biased, q_len=1))

    assert findings.add(_report(replace(biased, heads=2)), "drawn") is None
    assert finding.count == 2
    # It cannot be the bias.
    assert findings.add(_report(CASE), "drawn") is not None
    assert findings.add(_report(biased, output="l"), "drawn") is not None


def test_what_waited_for_a_reduction_may_be_another_fault() -> None:
    findings = Findings()
    biased = replace(CASE, bias=Bias("float32", "normal"))
    finding = findings.add(_report(biased), "drawn")
    assert finding is not None
    assert findings.add(_report(CASE), "drawn") is None
    finding.minimal, finding.settled = _report(biased), "reduced"
    group, others = findings.settle(finding)
    assert group == [finding]
    assert others == [_report(CASE)]
    assert finding.count == 1


def test_what_did_not_fail_again_hides_no_other_case() -> None:
    findings = Findings()
    finding = findings.add(_report(CASE), "drawn")
    assert finding is not None
    other = _report(replace(CASE, heads=2))
    assert findings.add(other, "drawn") is None  # waits
    finding.settled = "did not fail when it was run again"
    assert findings.others(finding, None) == [other]
    assert (finding.count, finding.waiting) == (1, [])
    assert findings.add(_report(CASE), "drawn") is None
    assert findings.add(other, "drawn") is not None


def test_one_fault_under_two_properties_is_one_finding() -> None:
    findings = Findings()
    first = _reduced(findings, _report(CASE, "outputs"), CASE)
    second = _reduced(
        findings,
        _report(CASE, "gradients"),
        replace(CASE, parameters={"gradient_of": ["q"]}),
    )
    group, _ = findings.settle(second)
    assert group == [first, second]
    assert list(findings) == [first]
    assert first.also == ["gradients"]


def test_two_faults_with_one_minimal_case_stay_two() -> None:
    findings = Findings()
    _reduced(findings, _report(CASE, "gradients", "dq"), CASE)
    second = _reduced(findings, _report(CASE, "gradients", "dk"), CASE)
    findings.settle(second)
    assert len(findings) == 2


def test_what_fails_directly_too_is_a_finding_of_that() -> None:
    findings = Findings()
    name = "invariances.same_call"
    indirect = _reduced(findings, _report(CASE, name), CASE, directly=["o", ""])
    direct = _reduced(findings, _report(CASE, "outputs"), replace(CASE, q_len=1))
    group, _ = findings.settle(direct)
    assert group == [direct, indirect]
    assert direct.also == [name]
    # Another output shows another fault.
    other = _reduced(findings, _report(CASE, name, "dv"), CASE, directly=None)
    findings.settle(other)
    assert len(findings) == 2


def test_a_crash_is_the_same_under_every_property() -> None:
    findings = Findings()
    ended = "was ended by SIGABRT"
    crash = _reduced(findings, _report(CASE, "outputs", PROCESS, ended), replace(CASE, q_len=1))
    assert findings.add(_report(CASE, "invariances.scaling", PROCESS, ended), "drawn") is None
    other = _report(CASE, "invariances.scaling", PROCESS, "was ended by SIGSEGV")
    assert findings.add(other, "drawn") is not None
    broken = replace(CASE, breaks="rank", parameters={"argument": "q"})
    assert findings.add(_report(broken, "refusals", PROCESS, ended), "drawn") is None
    assert crash.also == ["invariances.scaling", "refusals"]
    smaller = _report(replace(CASE, kv_len=1), "memory", PROCESS, ended)
    assert findings.add(smaller, "drawn") is not None


def test_findings_are_kept_as_data() -> None:
    findings = Findings()
    _reduced(findings, _report(CASE), CASE)
    again = Findings(json.loads(json.dumps(findings.data())))
    assert list(again) == list(findings)


def test_a_case_contains_itself_and_nothing_larger() -> None:
    large = replace(CASE, causal=True, heads=2, bias=Bias("float32", "normal"), sm_scale=0.5)
    assert contains(large, large)
    assert contains(large, CASE)
    assert not contains(CASE, large)
    assert not contains(large, replace(CASE, head_dim=64))
    assert not contains(large, replace(CASE, dtype="bfloat16"))


# Entries of a database.


def test_an_entry_comes_back_as_it_was() -> None:
    entry = entries.decoded(entries.encoded(_report(CASE, "gradients")))
    assert entry == entries.Entry(("gradients",), CASE)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b"{}",
        b"\x80\x04\x95",
        json.dumps(_report(CASE, "no such property")).encode(),
        json.dumps(_report(CASE) | {"schema": 2}).encode(),
        json.dumps(_report(CASE) | {"more": 1}).encode(),
        json.dumps(_report(replace(CASE, q_len=10**9))).encode(),
        json.dumps(_report(CASE) | {"case": CASE.to_dict() | {"tensors": "x.npz"}}).encode(),
        json.dumps(_report(replace(CASE, parameters={"row": "x"}))).encode(),
        b" " * 2**21,
    ],
)
def test_a_malformed_entry_is_refused_in_a_line(value: bytes) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        entries.decoded(value)
    assert "\n" not in str(error.value)


# Usage.


def test_a_folder_is_of_one_job(tmp_path: pathlib.Path) -> None:
    folder = Folder(tmp_path)
    with pytest.raises(ValueError, match="another job uses it"):
        Folder(tmp_path)
    folder.close()
    Folder(tmp_path).close()


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"schema": 2}', b'{"schema": 1, "target": "a:b", "seed": 3}']
)
def test_what_is_no_state_is_refused(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(ValueError, match="give another --out"):
        Folder(tmp_path).load()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "soon"], "budget 'soon'"),
        (["--budget", "1s", "--workers", "0"], "--workers 0"),
        (["--budget", "1s", "--shard", "2/2"], "--shard '2/2'"),
        (["--budget", "1s", "--database", "http://host"], "http://"),
        (["--budget", "1s", "--database", "redis://"], "redis://HOST"),
        (["--budget", "1s", "--database", "redis://host:port"], "--database redis://host"),
        (["--budget", "1s", "--report", "no/such/folder.html"], "its folder does not exist"),
        (["--budget", "1s", "--report-json", "."], "a folder; give the name of a file"),
        (["--budget", "1s", "--target", "no_such_module:attend"], "no_such_module"),
    ],
)
def test_bad_usage(
    options: list[str],
    said: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fuzz", *options]) == 2
    assert said in capsys.readouterr().err


def test_rules_are_drawn_for_fuzzing_as_they_are_for_pytest() -> None:
    """A test by the name of its argument runs no kernel, and weighs less."""
    (weight,) = {each.weight for each in suite.tests() if each.function is test_refusals.test_rule}
    assert weight < 1
