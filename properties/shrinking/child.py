"""A process that runs cases for this one, and may crash or hang instead of it.

It is forked from one with all imports done: that costs tens of milliseconds and the import of the
target.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from typing import Any

from properties.judging.targets import TargetError

_STARTING = 60.0
"""Seconds that importing the target may take."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["properties.shrinking.warm"])


class Child:
    """A process that has loaded a target; `hello` is what it said then.

    work: a function of a connection, the target's name and `arguments`. It sends a JSON object with
    "trouble", why the target cannot be used or None, before anything else. Raises TargetError.
    """

    def __init__(self, work: Callable[..., None], target: str, arguments: Sequence[Any]) -> None:
        self.connection, its = _context.Pipe()
        self._process = _context.Process(target=work, args=(its, target, *arguments), daemon=True)
        self._process.start()
        its.close()
        self.hello = self._greeted(target)

    def _greeted(self, target: str) -> dict[str, Any]:
        try:
            hello = self.receive() if self.connection.poll(_STARTING) else None
        except EOFError:
            how = self.end()
            raise TargetError(
                f"target {target!r}: importing it ended the process by {how}"
            ) from None
        if hello is None:
            self.end(patience=0)
            raise TargetError(f"target {target!r}: importing it took more than {_STARTING:.0f} s")
        if hello["trouble"]:
            self.end()
            raise TargetError(hello["trouble"])
        return hello

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.exitcode is None

    @property
    def code(self) -> int:
        """The exit code; after `end`."""
        assert self._process.exitcode is not None
        return self._process.exitcode

    def send(self, message: Any) -> None:
        """Raises OSError where the process has ended."""
        self.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> Any:
        """Raises EOFError or OSError where the process has ended."""
        return json.loads(self.connection.recv_bytes())

    def kill(self) -> None:
        """Ends the process at once. Whoever waits for it to answer is told that it has ended."""
        self._process.kill()

    def end(self, patience: float = 1.0) -> str:
        """Ends the process; says how it ended, if it did so by itself in that many seconds."""
        self.connection.close()
        # One that is ending has closed its side of the pipe already.
        self._process.join(patience)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            return "its watchdog"
        return signal.Signals(-code).name if code < 0 else f"its exit, with code {code}"
