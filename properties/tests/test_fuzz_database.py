"""Failures shared between machines: with folders, with a real server, with what is none."""

import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from properties.fuzzing import exchange
from properties.fuzzing.exchange import Exchange

KEY = b"key"


def _wait(until: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _arrived(there: Exchange) -> list[bytes]:
    values = []
    while True:
        try:
            values.append(there.arrived.get_nowait())
        except queue.Empty:
            return values


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_PERIOD", 0.1)
    monkeypatch.setattr(exchange, "_TIMEOUT", 0.5)


def test_failures_go_through_a_folder(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    shared = str(tmp_path / "shared")
    one, other = (Exchange(tmp_path / name, shared, KEY, said.append) for name in ("one", "other"))
    one.save(b"found")
    assert _wait(lambda: not other.arrived.empty())
    assert _arrived(other) == [b"found"]
    assert _arrived(one) == []
    # Reduced, it takes the place of what was found.
    one.replace(b"found", b"reduced")
    assert _wait(lambda: not other.arrived.empty())
    one.end()
    other.end()
    assert set(DirectoryBasedExampleDatabase(shared).fetch(KEY)) == {b"reduced"}
    later = Exchange(tmp_path / "later", shared, KEY, said.append)
    later.wait()
    assert _arrived(later) == [b"reduced"]
    assert said == []


def test_what_was_kept_before_is_there_without_a_database(tmp_path: pathlib.Path) -> None:
    one = Exchange(tmp_path, None, KEY, print)
    one.save(b"kept")
    one.end()
    again = Exchange(tmp_path, None, KEY, print)
    again.wait()
    assert again.kept_before() == (b"kept",)
    again.drop(b"kept")
    assert Exchange(tmp_path, None, KEY, print).kept_before() == ()


def test_what_is_dropped_here_stays_with_others(tmp_path: pathlib.Path) -> None:
    shared = DirectoryBasedExampleDatabase(tmp_path / "shared")
    shared.save(KEY, b"theirs")
    one = Exchange(tmp_path / "one", str(tmp_path / "shared"), KEY, print)
    one.wait()
    one.drop(b"theirs")
    one.end()
    assert set(shared.fetch(KEY)) == {b"theirs"}


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def _server(port: int, folder: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Redis server that keeps nothing on disk, once it answers."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed")
    options = ["--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", str(folder)]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        assert _wait(lambda: _answers(port))
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_server_that_comes_late_and_is_restarted_empty(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    port = _port()
    url = f"redis://127.0.0.1:{port}/0"
    one = Exchange(tmp_path / "one", url, KEY, said.append)
    one.wait()
    one.save(b"before")
    assert _wait(lambda: bool(said))
    with _server(port, tmp_path):
        other = Exchange(tmp_path / "other", url, KEY, said.append)
        assert _wait(lambda: not other.arrived.empty())
        assert _arrived(other) == [b"before"]
    one.save(b"meanwhile")
    assert _wait(lambda: sum("unreachable" in line for line in said) == 3)
    with _server(port, tmp_path):
        third = Exchange(tmp_path / "third", url, KEY, said.append)
        assert _wait(lambda: third.arrived.qsize() == 2)
        assert set(_arrived(third)) == {b"before", b"meanwhile"}
        for each in (one, other, third):
            each.end()
    # Once for each change, not for each attempt.
    of_one = [line for line in said if line.endswith(("is back", "without it"))]
    assert len(of_one) == len(said) == 6


def test_a_server_that_hangs(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    port = _port()
    with _server(port, tmp_path) as server:
        one = Exchange(tmp_path / "one", f"redis://127.0.0.1:{port}/0", KEY, said.append)
        one.wait()
        server.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        one.save(b"found")
        assert time.monotonic() - began < 0.4
        assert _wait(lambda: bool(said))
        server.send_signal(signal.SIGCONT)
        assert _wait(lambda: len(said) == 2)
        one.end()
        later = Exchange(tmp_path / "later", f"redis://127.0.0.1:{port}/0", KEY, said.append)
        later.wait()
        assert _arrived(later) == [b"found"]
        later.end()
    assert "unreachable" in said[0]
    assert "is back" in said[1]


def test_what_answers_but_is_no_redis(tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        there = Exchange(tmp_path, f"redis://:secret@127.0.0.1:{port}/0", KEY, said.append)
        connection, _ = listening.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert _wait(lambda: bool(said))
        connection.close()
    there.end()
    assert "unreachable" in said[0]
    assert "secret" not in said[0]
