"""The folder of a job: what is on disk of it, and that only one job uses it at a time.

state.json    all counts and findings so far; the journals say what came after
journal/      what the workers have begun and ended since
logs/         what workers said that crashed or had to be ended
found/        failures as they were found
reports/      the same reduced, each a report and a case: ready to be committed as a regression
examples/     the failures again, as Hypothesis's example database
"""

import fcntl
import json
import pathlib
from typing import IO, Any

from properties.shrinking.writing import replace_file

_SCHEMA = 1

# What every state has beside its schema.
_FIELDS = {
    "target": str,
    "seed": str,
    "process": int,
    "ledger": dict,
    "findings": list,
    "journals": dict,
}


class Folder:
    """Raises ValueError where the folder cannot be used, or another job uses it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            for name in ("journal", "logs", "found", "reports"):
                (path / name).mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (path / "lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--out {path}: another job uses it; give each its own") from None
        except OSError as error:
            raise ValueError(f"--out {path}: {error.strerror}") from error
        self.journals, self.logs = path / "journal", path / "logs"
        self.found, self.reports = path / "found", path / "reports"
        self.examples = path / "examples"

    def close(self) -> None:
        self._lock.close()

    def load(self) -> dict[str, Any] | None:
        """The state that was saved, None if there is none. Raises ValueError for what is none."""
        file = self.path / "state.json"
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: {error}; give another --out") from error
        known = isinstance(state, dict) and state.get("schema") == _SCHEMA
        if not known or any(not isinstance(state.get(name), of) for name, of in _FIELDS.items()):
            raise ValueError(f"{file}: not of this version of the harness; give another --out")
        return state

    def save(self, state: dict[str, Any]) -> None:
        content = json.dumps({"schema": _SCHEMA} | state).encode()
        replace_file(self.path / "state.json", content)
