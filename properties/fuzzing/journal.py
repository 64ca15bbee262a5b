"""What a worker has begun and ended: a file that is only appended to, a record of JSON a line.

A record is written by one call of the system before a case starts, another after it ended, so that
a process that ends in whatever way leaves the case that it was at as one that was begun and not
ended. Files are numbered by process and, since they are begun anew at a size, by part:
`000007-002.jsonl`. Records are

    {"begin": N, "time", "property", "case", "folder", "test", "replay"}
    {"end": N, "seconds", "cpu_seconds", "stages", "skipped" or "result", "report"}
    {"done": TEST}      a test with a fixed list of cases has run them all
    {"next": FILE}      the last of a file: the process goes on in another

and of the process that watches, in place of an end,

    {"lost": N, "how", "hung", "seconds", "log"}       the case ended its process, or hung
    {"interrupted": N}                                 the process was ended with the job
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from properties.cases.case import Case
from properties.judging.result import Result
from properties.judging.verdict import Verdict, json_number

Record = dict[str, Any]

MOST_BYTES = 8 * 2**20
"""Of one file; each is removed once what it says has been counted."""

# What is read of a record, by the field that tells its kind: a line without is none of ours.
_FIELDS = {
    "begin": {"property", "case", "folder"},
    "end": {"seconds", "cpu_seconds", "stages"},
    "done": set(),
    "next": set(),
    "lost": {"how", "hung", "seconds", "log"},
    "interrupted": set(),
}

_NAME = re.compile(r"(\d{6,})-(\d{3,})\.jsonl")


def name(process: int, part: int = 0) -> str:
    return f"{process:06}-{part:03}.jsonl"


def numbers(path: pathlib.Path) -> tuple[int, int] | None:
    """The process and the part of a journal, None for any other file."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else (int(match[1]), int(match[2]))


def append(path: pathlib.Path, record: Record) -> None:
    """Adds a record to a journal of a process that has ended."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # What the process may have been writing when it ended is then a line of its own.
        os.write(file, b"\n" + _line(record))
    finally:
        os.close(file)


def _line(record: Record) -> bytes:
    return json.dumps(record).encode() + b"\n"


class Journal:
    """The side that writes. Raises OSError where a record cannot be written whole."""

    def __init__(self, folder: pathlib.Path, process: int) -> None:
        self._folder, self._process, self._part = folder, process, 0
        self._size = 0
        self._open()

    def _open(self) -> None:
        path = self._folder / name(self._process, self._part)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._size = 0

    def write(self, record: Record) -> None:
        line = _line(record)
        if os.write(self._file, line) != len(line):
            raise OSError(f"a record of {len(line)} bytes was not written whole")
        self._size += len(line)
        if self._size > MOST_BYTES and "begin" not in record:
            self._part += 1
            os.write(self._file, _line({"next": name(self._process, self._part)}))
            os.close(self._file)
            self._open()


class Tail:
    """The side that reads, from one process: what is new in its files."""

    def __init__(self, path: pathlib.Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.read: list[pathlib.Path] = []  # to the end: may be removed

    def records(self) -> Iterator[Record]:
        """Whole records that were not read before."""
        while self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self.offset += len(whole)
            following = None
            for line in whole.splitlines():
                record = _parsed(line)
                if record is not None and "next" in record:
                    following = record["next"]
                elif record is not None:
                    yield record
            if following is None:
                return
            self.read.append(self.path)
            self.path, self.offset = self.path.with_name(following), 0


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # what a process that was ended had half written
    if not isinstance(record, dict):
        return None
    known = any(kind in record and needed <= set(record) for kind, needed in _FIELDS.items())
    return record if known else None


def outcome(result: Result) -> Record:
    """What is counted of a result."""
    return {
        "property": result.name,
        "mode": result.mode,
        "verdicts": [
            [each.output, json_number(each.ratio), each.elements]
            for each in result.verdicts
            if each.ratio is not None
        ],
        "rows": result.rows,
        "untested_rows": result.untested_rows,
        "refused": result.refused,
        "skipped": result.skipped,
        "fallback": result.fallback,
        "ran": result.ran,
        "oracle_seconds": result.oracle_seconds,
    }


def result_of(record: Record, case: Case) -> Result:
    """The result of a case, as far as it is counted, from its `outcome`."""
    fields = dict(record)
    verdicts = [
        Verdict(output, ratio=float(ratio), elements=elements)
        for output, ratio, elements in fields.pop("verdicts")
    ]
    return Result(fields.pop("property"), case, fields.pop("mode"), verdicts, **fields)


def digest(property: str, case: Case) -> str:
    """Names a case under a property, the same in every process."""
    text = f"{property} {json.dumps(case.to_dict(), sort_keys=True)}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
