"""Failures shared with other machines, through a database that may be away for a while.

Two example databases of Hypothesis's hold them: a folder of this job's, and the one that
`--database` names. Every half minute each is given what only the other has: what is found while the
server is away is sent when it is back, also to a server that came back empty. All this is done in a
thread of its own, since a server may take seconds to answer, or never do.
"""

import pathlib
import queue
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

import redis
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.extra.redis import RedisExampleDatabase
from redis.backoff import NoBackoff
from redis.retry import Retry

_PERIOD = 30.0
_TIMEOUT = 3.0  # seconds for a server to connect, and to answer
_ENDING = 8.0
_MOST = 10_000  # entries of others that are replayed


class Exchange:
    """Keeps a folder and another database in step. `say` is given a line where that changes.

    `arrived` are entries of others, each once.
    """

    def __init__(
        self, folder: pathlib.Path, url: str | None, key: bytes, say: Callable[[str], None]
    ) -> None:
        """Raises ValueError for a URL of no database."""
        self._own: ExampleDatabase = DirectoryBasedExampleDatabase(folder)
        self._key, self._say = key, say
        self._others: ExampleDatabase | None = None
        self._errors: tuple[type[Exception], ...] = ()
        if url:
            self._others, self._errors, self._named = _database(url)
        self._seen = set(self._own.fetch(key))
        self._before = tuple(self._seen)
        self._retired: set[bytes] = set()
        self._lock = threading.Lock()
        self._reachable = True
        self._wake, self._first, self._ended = (threading.Event() for _ in range(3))
        self.arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self._others is None:
            self._first.set()
        else:
            self._thread.start()

    def kept_before(self) -> tuple[bytes, ...]:
        """Entries of earlier runs of this job."""
        return self._before

    def wait(self) -> None:
        """Until others' entries have arrived, or the database has had its time to answer."""
        self._first.wait(2 * _TIMEOUT)

    def save(self, value: bytes) -> None:
        """Keeps a failure here, and gives it to others as soon as can be."""
        with self._lock:
            if value not in self._seen:
                self._seen.add(value)
                self._own.save(self._key, value)
                self._wake.set()

    def keep(self, value: bytes) -> None:
        """Keeps what came from others, since it fails here too."""
        with self._lock:
            self._own.save(self._key, value)

    def replace(self, value: bytes, by: bytes) -> None:
        """Keeps a reduced failure instead of what it was found as."""
        if by != value:
            self.save(by)
            self.drop(value)

    def drop(self, value: bytes) -> None:
        """Forgets a failure that was found or kept here; others' are not touched."""
        with self._lock:
            if value in self._own.fetch(self._key):
                self._own.delete(self._key, value)
                self._retired.add(value)
                self._wake.set()

    def end(self) -> None:
        """Sends what is left, if the database answers in time."""
        if self._others is not None:
            self._ended.set()
            self._wake.set()
            self._thread.join(_ENDING)

    def _run(self) -> None:
        while True:
            ending = self._ended.is_set()
            self._wake.clear()
            self._synchronise()
            self._first.set()
            if ending:
                return
            if not self._ended.is_set():
                # Failures come in bursts: not a connection for each.
                self._wake.wait(_PERIOD)

    def _synchronise(self) -> None:
        assert self._others is not None
        try:
            theirs = set(self._others.fetch(self._key))
            with self._lock:
                own = set(self._own.fetch(self._key))
                retired = self._retired & theirs
            for value in sorted(own - theirs):
                self._others.save(self._key, value)
            for value in sorted(retired):
                self._others.delete(self._key, value)
        except self._errors as error:
            if self._reachable:
                why = " ".join(str(error).split())[:200]
                self._say(f"database {self._named} unreachable ({why}): going on without it")
            self._reachable = False
            return
        if not self._reachable:
            self._say(f"database {self._named} is back")
        self._reachable = True
        with self._lock:
            new = sorted(theirs - self._seen - self._retired)[:_MOST]
            self._seen.update(new)
            self._retired -= retired
        for value in new:
            self.arrived.put(value)


def _database(url: str) -> tuple[ExampleDatabase, tuple[type[Exception], ...], str]:
    """The database, what it raises where it cannot be used, and its name without passwords."""
    if "://" not in url:
        folder = pathlib.Path(url)
        if not url or (folder.exists() and not folder.is_dir()):
            raise ValueError(f"--database {url!r}: a folder, or redis://HOST:PORT/DB")
        return DirectoryBasedExampleDatabase(folder), (OSError,), url
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError(
            f"--database: {parts.scheme}:// is no database that is known; give "
            "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or a folder"
        )
    named = f"{parts.scheme}://{parts.hostname}"
    try:
        named += f":{parts.port or 6379}{parts.path}"
        options: dict[str, Any] = {
            "socket_timeout": _TIMEOUT,
            "socket_connect_timeout": _TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
        }
        client = redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise ValueError(f"--database {named}: {error}") from None
    return RedisExampleDatabase(client), (redis.RedisError, OSError), named
