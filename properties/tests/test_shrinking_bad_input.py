"""Bad input to `shrink` and `replay`: one line, exit code 2, nothing run, nothing written."""

import io
import json
import pathlib
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.cases.case import Bias, Blocks, Case, Segments
from properties.claims import checks
from properties.commands import parameters, replay, shrink
from properties.commands.main import main
from properties.drawing.breaking import BREAKERS

CASE = Case(
    *(1, 2, 8, 9, 8),
    bias=Bias("float32", "normal"),
    segments=Segments("int32", (((0, 8),),), (((0, 4), (1, 5)),)),
    block_sizes=Blocks(8, 9, 9, 1),
).to_dict()

REPORT: dict[str, Any] = {
    "schema": 1,
    "target": "kernel:flash_attention",
    "property": "outputs",
    "mode": "numpy",
    "masked_rows": "zero",
    "case": CASE,
    "verdict": {"output": "o", "message": "is beyond the bound in 1 of 1 elements"},
    "environment": {},
}

_JUNK = [None, True, -1, 0, 1.5, "", "x", [], {}, [[1]], {"a": 1}, -(10**30), "\ud800", "a\nb"]
_BAD_FIELDS: dict[str, list[Any]] = {
    **{name: [*_JUNK, 7, 10**12] for name in ("batch", "q_len", "kv_len")},
    **{name: [*_JUNK, 10**12] for name in ("heads", "head_dim")},
    "dtype": [*_JUNK, "float64"],
    "causal": [*_JUNK[2:], None, 1],
    "sm_scale": [*_JUNK[5:11], None, True, 1e39, 10**400],
    "bias": [True, 1, "x", [], {}, {"dtype": "float32"}, {"dtype": "float32", "family": "x"}],
    "segments": [True, 1, "x", [], {}, {"q": [], "kv": []}, {"q": [[[0, 8]]], "kv": [[[0, 8]]]}],
    "block_sizes": [True, 1, "x", [], {}, {"block_q": 8}, CASE["block_sizes"] | {"block_x": 1}],
    "values": [*_JUNK, "gaussian"],
    "seed": [*_JUNK[:3], *_JUNK[4:], 2**64],
    "breaks": [*_JUNK[1:], "nothing"],
    "parameters": [*_JUNK[1:8], [[1]]],
    "tensors": [
        *(True, 1, [], {}, "", ".", ".."),
        *("../x.npz", "/etc/passwd", "a/b.npz", "..\\x.npz", "x\0.npz", "nowhere.npz"),
    ],
    "schema": [*_JUNK, 2, 10**5000 // 10**4900],
}
_BAD_REPORT_FIELDS: dict[str, list[Any]] = {
    "schema": [*_JUNK, 2, 3],
    "target": [True, 1, [], {}],
    "property": [*_JUNK[1:], "speed"],
    "mode": [*_JUNK[1:], "fast"],
    "masked_rows": [*_JUNK[1:], "one"],
    "case": _JUNK,
    "verdict": [True, 1, "x", [], {"output": 1}, {"output": "o", "message": []}],
    "speed": [1],
}


@st.composite
def bad_texts(draw: st.DrawFn) -> bytes:
    """Text that is no case and no report, each in its own way."""
    whole = draw(st.sampled_from([CASE, REPORT]))
    text = json.dumps(whole)
    kind = draw(st.sampled_from(["cut", "bytes", "json", "fields", "missing", "constant", "deep"]))
    if kind == "cut":
        return text[: draw(st.integers(0, len(text) - 1))].encode()
    if kind == "bytes":
        return b"\xff" + draw(st.binary(max_size=50))
    if kind == "json":
        scalars = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
        return json.dumps(draw(st.recursive(scalars, _nested, max_leaves=8))).encode()
    if kind == "deep":
        opening = draw(st.sampled_from(["[", '{"case": ', '{"parameters": ']))
        return (opening * draw(st.sampled_from([1, 200_000]))).encode()
    if kind == "constant":
        constant = draw(st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000]))
        field = draw(st.sampled_from(["sm_scale", "seed", "q_len"]))
        return json.dumps(CASE | {field: "HERE"}).replace('"HERE"', constant).encode()
    if kind == "missing":
        name = draw(st.sampled_from(list(CASE)))
        changed = {key: value for key, value in CASE.items() if key != name}
    else:
        fields = _BAD_FIELDS | {"speed": [1], "a\nb": [1]}
        name = draw(st.sampled_from(list(fields)))
        changed = CASE | {name: draw(st.sampled_from(fields[name]))}
    if whole is CASE:
        return json.dumps(changed).encode()
    if draw(st.booleans()):
        return json.dumps(REPORT | {"case": changed}).encode()
    name = draw(st.sampled_from(list(_BAD_REPORT_FIELDS)))
    value = draw(st.sampled_from(_BAD_REPORT_FIELDS[name]))
    return json.dumps(REPORT | {name: value}).encode()


def _nested(children: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children)


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return print, ("unpickled",)


def _npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def _claiming(shape: str, dtype: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """An array that says that it has this shape."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


_Q = _npy(np.ones((1, 1, 2, 4), np.float32))
_GOOD = {"q.npy": _Q, "k.npy": _Q, "v.npy": _Q}
_BAD_MEMBERS: dict[str, list[bytes]] = {
    "q.npy": [
        *(b"", b"\x93NUMPY", _Q[:40], _Q[:-1], _Q + b"\0", pickle.dumps(Bomb())),
        _npy(np.array([[[[Bomb()]]]], object), allow_pickle=True),
        _claiming("(1, 1, 50000, 50000)"),
        _claiming("(1, 1, -2, 4)"),
        _claiming(f"({'9' * 300}, 1)"),
        _claiming("(1, 1, 2, 4)", dtype="|O"),
        _claiming("__import__('os').system('true')"),
        _claiming("(" * 5000),
        *(_npy(np.ones(shape, np.float32)) for shape in ((), (2,), (1, 1, 0, 4), (1, 1, 3, 5))),
        *(_npy(np.ones((1, 1, 2, 4), dtype)) for dtype in (np.float64, np.int32, complex, ">f4")),
        *(_npy(np.full((1, 1, 2, 4), value, np.float32)) for value in (np.nan, np.inf)),
        _npy(np.ones((1, 1, 2, 4), np.uint16)),
    ],
    "k.npy": [_npy(np.ones((1, 2, 2, 4), np.float32)), _npy(np.ones((2,), np.float32))],
    "ab.npy": [_npy(np.ones((1, 1, 2, 3), np.float32)), _npy(np.full((1, 1, 2, 2), np.inf, "f4"))],
    "q_segment_ids.npy": [_npy(np.zeros((1, 2), np.int32))],
    "call.npy": [
        *(_npy(np.array(text)) for text in ("{", "[]", '{"speed": 1}', '{"causal": 1}')),
        *(_npy(np.array(text)) for text in ('{"dtype": "bfloat16"}', '{"sm_scale": NaN}')),
        *(_npy(np.array(text)) for text in ('{"block_sizes": {}}', "")),
        _npy(np.ones(3)),
    ],
    **{name: [_Q] for name in ("../q.npy", "/q.npy", "..", "w.npy", "__class__.npy", "a\nb")},
}


@st.composite
def bad_archives(draw: st.DrawFn) -> bytes:
    """Files that are no `.npz` of a call."""
    kind = draw(st.sampled_from(["member", "bytes", "cut", "bomb", "missing", "flipped"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    members = dict(_GOOD)
    if kind == "member":
        name = draw(st.sampled_from(list(_BAD_MEMBERS)))
        members[name] = draw(st.sampled_from(_BAD_MEMBERS[name]))
    if kind == "missing":
        del members[draw(st.sampled_from(list(members)))]
    if kind == "bomb":
        members["q.npy"] = _claiming("(1, 1, 1024, 1024)", data=bytes(2**22))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    whole = archive.getvalue()
    if kind == "bomb":
        # What the directory says of the size of the first member: 3 GiB, then.
        place = whole.index(b"PK\x01\x02") + 24
        whole = whole[:place] + (3 * 2**30).to_bytes(4, "little") + whole[place + 4 :]
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole) - 1))]
    if kind == "flipped":
        # Inside the first member's data, which has a checksum.
        place = 40 + draw(st.integers(0, 30))
        whole = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
    return whole


def _not_reached(*arguments: object, **options: object) -> None:
    raise AssertionError("bad input was run")


def _refused(arguments: list[str], folder: pathlib.Path, text: str = "") -> str:
    """The one line that refuses; the commands run nothing, write nothing."""
    before = sorted(folder.rglob("*"))
    out, error = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(replay, "run", _not_reached),
        mock.patch.object(shrink, "Trials", _not_reached),
        mock.patch.object(sys, "stdin", io.StringIO(text)),
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        code = main(arguments)
    assert code == 2, out.getvalue()
    assert sorted(folder.rglob("*")) == before
    assert out.getvalue() == ""
    message = error.getvalue()
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert len(message) < 2000
    return message


@pytest.fixture(scope="module")
def folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


_MANY = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@_MANY
@given(text=bad_texts(), command=st.sampled_from(["shrink", "replay"]))
def test_bad_text(folder: pathlib.Path, text: bytes, command: str) -> None:
    path = folder / "bad.json"
    path.write_bytes(text)
    out = ["--out", str(folder / "out")] if command == "shrink" else []

    _refused([command, str(path), *out], folder)
    if text.isascii():
        _refused([command, "-", *out], folder, text.decode())


@_MANY
@given(content=bad_archives(), command=st.sampled_from(["shrink", "replay"]))
def test_bad_tensors(folder: pathlib.Path, content: bytes, command: str) -> None:
    path = folder / "bad.npz"
    path.write_bytes(content)

    _refused([command, str(path)], folder)


@pytest.mark.parametrize("command", ["shrink", "replay"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q_len": 2**20, "kv_len": 2**20, "segments": None}, "more than 4 GiB"),
        ({"batch": 10**400, "segments": None}, "more than 4 GiB"),
        (
            {"breaks": "kv_len_mismatch", "parameters": {"argument": "v", "size": 10**12}},
            "none of the ways",
        ),
        ({"schema": 2, "speed": 1}, "this program reads schema 1"),
        ({"tensors": "../x.npz"}, "bare name"),
    ],
)
def test_what_the_line_says(
    folder: pathlib.Path, command: str, changes: dict[str, Any], words: str
) -> None:
    path = folder / "bad.json"
    path.write_text(json.dumps(CASE | changes), encoding="utf-8")

    assert words in _refused([command, str(path)], folder)


def test_nothing_is_read_beyond_what_a_case_may_be(tmp_path: pathlib.Path) -> None:
    assert "million characters" in _refused(["shrink", "/dev/zero"], tmp_path)


def test_a_good_archive_is_reached(tmp_path: pathlib.Path) -> None:
    """What the tests above refuse is refused for what was changed in it."""
    with zipfile.ZipFile(tmp_path / "good.npz", "w") as file:
        for name, content in _GOOD.items():
            file.writestr(name, content)

    with (
        mock.patch.object(replay, "run", _not_reached),
        pytest.raises(AssertionError, match="was run"),
    ):
        main(["replay", str(tmp_path / "good.npz")])


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 2) | st.text(max_size=3),
    _nested,
    max_leaves=5,
)
_NAMES = {name for names in parameters.NAMES.values() for name in names}


@settings(_MANY, max_examples=150)
@given(
    name=st.sampled_from(sorted(checks.PROPERTIES)),
    given_parameters=st.dictionaries(st.sampled_from(sorted(_NAMES)), _VALUES, max_size=4),
    rule=st.none() | st.sampled_from(sorted(BREAKERS)),
)
def test_odd_parameters_are_refused_or_run(
    folder: pathlib.Path, name: str, given_parameters: dict[str, Any], rule: str | None
) -> None:
    """By a target that refuses every call, so that what is tested is how parameters are read."""
    case = CASE | {"parameters": given_parameters, "breaks": rule}
    path = folder / "odd.json"
    path.write_text(json.dumps(REPORT | {"property": name, "case": case}), encoding="utf-8")
    target = f"{__name__}:refuse"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as error:
        code = main(["replay", str(path), "--target", target, "--mode", "numpy"])

    assert code in (0, 1, 2)
    assert error.getvalue().count("\n") == (code == 2)


def refuse(*arguments: object, **options: object) -> None:
    raise NotImplementedError("this target refuses every call")
