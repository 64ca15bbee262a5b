"""Runs cases in another process, which a crash or a hang takes along instead of this one.

Every candidate is run so, since any of them may crash: a process that is forked from one with all
imports done costs tens of milliseconds and the import of the target, and runs case after case.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from properties import environment
from properties.cases.case import Case, CaseError
from properties.judging.targets import MaskedRows, TargetError
from properties.judging.verdict import Verdict
from properties.shrinking import worker
from properties.shrinking.signature import PROCESS, Signature

_FIRST, _LEAST, _MOST = 60.0, 10.0, 1800.0
"""Seconds that a case may take before one has come to an end, and the least and most after that."""

_PATIENCE = 20.0
"""How many times as long as the slowest of those that came to an end a case may take."""

_SMALL = 2**25
"""Work below which the time of a case hardly depends on it: what is traced and compiled does."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["properties.shrinking.warm"])


class Trials:
    """How cases fail under some properties of a target: an instance is a `reducing.Fails`.

    properties: names, in the order in which to ask them; once a case has failed under one, only
    that one is asked. `reports` holds the failure report of every case that failed. To be used in a
    `with` statement, which ends the process. Raises TargetError if the target cannot be loaded.
    """

    def __init__(
        self,
        properties: Sequence[str],
        target: str,
        mode: str,
        masked_rows: MaskedRows | None = None,
        *,
        seconds: float | None = None,
    ) -> None:
        """seconds: what a case may take, by default so many times what others took."""
        self.reports: dict[Case, dict[str, Any]] = {}
        self._properties = list(properties)
        self._target, self._mode, self._masked_rows = target, mode, masked_rows
        self._fixed, self._slowest = seconds, 0.0
        self._slowest_work = 0
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *exception: object) -> None:
        self._end(patience=0)

    def __call__(self, case: Case) -> Signature | None:
        """How the case fails. Raises CaseError for what is no case of the properties."""
        connection = self._connected()
        job = {
            "properties": self._properties,
            "case": case.to_dict(),
            "folder": os.path.abspath(case.folder),
        }
        began = time.monotonic()
        limit = self._limit(case)
        try:
            connection.send_bytes(json.dumps(job).encode())
            if not connection.poll(limit):
                self._end(patience=0)
                return self._found(case, f"gave nothing within {limit:.0f} s")
            answer = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return self._found(case, f"was ended by {self._end()}")
        seconds, work = time.monotonic() - began, _work(case)
        if seconds > self._slowest:
            self._slowest, self._slowest_work = seconds, work
        if answer["report"] is not None:
            return self._failed(case, answer["report"])
        if answer["trouble"] is not None:
            raise CaseError(answer["trouble"])
        return None

    def _limit(self, case: Case) -> float:
        if self._fixed is not None:
            return self._fixed
        if not self._slowest:
            return _FIRST
        larger = max(_work(case) / max(self._slowest_work, _SMALL), 1.0)
        return min(max(_PATIENCE * self._slowest * larger, _LEAST), _MOST)

    def _found(self, case: Case, message: str) -> Signature:
        """How a case fails that ended its process, or had to be ended with it."""
        report = {
            "schema": 1,
            "target": self._target,
            "property": self._properties[0],
            "mode": self._mode,
            "masked_rows": self._masked_rows,
            "case": case.to_dict(),
            "verdict": Verdict(PROCESS, message).to_dict(),
            "environment": environment.versions(),
        }
        return self._failed(case, report)

    def _failed(self, case: Case, report: dict[str, Any]) -> Signature:
        self.reports[case] = report
        self._properties = [report["property"]]
        signature = Signature.of(report)
        assert signature is not None
        return signature

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        mine, its = _context.Pipe()
        process = _context.Process(
            target=worker.work,
            args=(its, self._target, self._mode, self._masked_rows),
            daemon=True,
        )
        process.start()
        its.close()
        self._process, self._connection = process, mine
        try:
            answer = json.loads(mine.recv_bytes()) if mine.poll(_FIRST) else None
        except EOFError:
            how = self._end()
            raise TargetError(
                f"target {self._target!r}: importing it ended the process by {how}"
            ) from None
        if answer is None or answer["trouble"]:
            self._end()
            why = f"target {self._target!r}: importing it took more than {_FIRST:.0f} s"
            raise TargetError(answer["trouble"] if answer else why)
        self._masked_rows = answer["masked_rows"]
        return mine

    def _end(self, patience: float = 1.0) -> str:
        """Ends the process, if any; says how it ended, if it did so by itself in that time."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is None:
            return "nothing"
        # One that is ending has closed its side of the pipe already.
        process.join(patience)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
            return "its watchdog"
        return signal.Signals(-code).name if code < 0 else f"its exit, with code {code}"


def _work(case: Case) -> int:
    """What the time of a case grows with."""
    rows = case.batch * case.heads
    return rows * (case.q_len * case.kv_len + case.q_len + case.kv_len) * (case.head_dim + 32)
