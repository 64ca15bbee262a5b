"""What workers write down, and what is made of it."""

import json
import pathlib

import pytest

from properties.cases.case import Case
from properties.claims import checks
from properties.drawing import space
from properties.fuzzing import journal
from properties.fuzzing.book import Book
from properties.fuzzing.exchange import Exchange
from properties.fuzzing.folder import Folder
from properties.fuzzing.ledger import Ledger, Open
from properties.fuzzing.reducer import Reducer
from properties.judging.targets import KERNEL, Target

CASE = Case(1, 1, 2, 3, 8)


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
