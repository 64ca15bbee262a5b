"""The parts of the nightly job, each by itself: nothing but small cases is run."""

import pathlib
from collections import Counter, defaultdict

import pytest
from hypothesis import settings

from properties import test_outputs, test_refusals
from properties.claims import checks
from properties.commands.main import main
from properties.drawing import breaking
from properties.fuzzing import suite
from properties.fuzzing.folder import Folder
from properties.fuzzing.shards import Shard, shard_of
from properties.fuzzing.turns import Turns
from properties.judging.targets import KERNEL, Target
from properties.session.profiles import SHARES

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
