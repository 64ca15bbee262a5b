"""What a person sees of a job while it runs, and what it says at its end."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from properties.fuzzing.findings import Finding
from properties.session import failure

_EVERY, _EVERY_IN_A_LOG = 10.0, 60.0


class Progress:
    """One line that overwrites itself on a terminal, one a minute elsewhere; other lines stay."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._width = 0
        self._next = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, line: str) -> None:
        """The state of the job."""
        now = time.monotonic()
        self._next = now + (_EVERY if self._live else _EVERY_IN_A_LOG)
        if self._live:
            self._stream.write(f"\r{line:{self._width}}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def say(self, line: str) -> None:
        """Something that happened."""
        start = f"\r{'':{self._width}}\r" if self._width else ""
        self._stream.write(f"{start}{line}\n")
        self._stream.flush()
        if self._width:
            self._width, self._next = 0, 0.0


def duration(seconds: float) -> str:
    """As in "1h02m", "3m05s"."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 60}m{whole % 60:02}s"


def told(findings: Sequence[Finding], folder: str) -> list[str]:
    """Each finding: how it fails, the minimal case, how to see it again, where it is written."""
    lines: list[str] = []
    for number, each in enumerate(findings, 1):
        count = f"{each.count} failure" + ("s" if each.count != 1 else "")
        state = "reduced" if each.minimal is not None else each.settled or "not reduced yet"
        lines += ["", f"{number}. {each.signature} ({count}, {state})"]
        lines += [failure.text(each.best)]
        if each.also:
            lines.append(f"  also fails: {', '.join(each.also)}")
        if each.log:
            lines.append(f"  log: {folder}/logs/{each.log}")
        lines.append(f"  written: {', '.join(f'{folder}/{name}' for name in each.files)}")
    return lines
