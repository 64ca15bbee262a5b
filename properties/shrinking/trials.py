"""Runs cases in another process, which a crash or a hang takes along instead of this one.

Every candidate is run so, since any of them may crash: a process that is forked from one with all
imports done costs tens of milliseconds and the import of the target, and runs case after case.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from properties import environment
from properties.cases.case import Case, CaseError
from properties.judging.targets import MaskedRows
from properties.judging.verdict import Verdict
from properties.shrinking import worker
from properties.shrinking.child import Child
from properties.shrinking.patience import Patience
from properties.shrinking.signature import PROCESS, Signature


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
        patience: Patience | None = None,
    ) -> None:
        """patience: what a case may take, by default so many times what others took."""
        self.reports: dict[Case, dict[str, Any]] = {}
        self._properties = list(properties)
        self._target, self._mode, self._masked_rows = target, mode, masked_rows
        self._patience = patience or Patience()
        self._child: Child | None = None

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *exception: object) -> None:
        self._end(patience=0)

    def __call__(self, case: Case) -> Signature | None:
        """How the case fails. Raises CaseError for what is no case of the properties."""
        child = self._started()
        job = {
            "properties": self._properties,
            "case": case.to_dict(),
            "folder": os.path.abspath(case.folder),
        }
        began = time.monotonic()
        limit = self._patience.limit(case)
        try:
            child.send(job)
            if not child.connection.poll(limit):
                self._end(patience=0)
                return self._found(case, NO_ANSWER.format(limit))
            answer = child.receive()
        except (EOFError, OSError):
            return self._found(case, ENDED.format(self._end()))
        self._patience.took(case, time.monotonic() - began)
        if answer["report"] is not None:
            return self._failed(case, answer["report"])
        if answer["trouble"] is not None:
            raise CaseError(answer["trouble"])
        return None

    def kill(self) -> None:
        """Ends the case that another thread waits for, by ending its process."""
        if self._child is not None:
            self._child.kill()

    def _found(self, case: Case, message: str) -> Signature:
        """How a case fails that ended its process, or had to be ended with it."""
        how = (self._target, self._properties[0], self._mode, self._masked_rows)
        return self._failed(case, process_report(case, *how, message))

    def _failed(self, case: Case, report: dict[str, Any]) -> Signature:
        self.reports[case] = report
        self._properties = [report["property"]]
        signature = Signature.of(report)
        assert signature is not None
        return signature

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child(worker.work, self._target, (self._mode, self._masked_rows))
            self._masked_rows = self._child.hello["masked_rows"]
        return self._child

    def _end(self, patience: float = 1.0) -> str:
        """Ends the process, if any; says how it ended, if it did so by itself in that time."""
        child, self._child = self._child, None
        return "nothing" if child is None else child.end(patience)


NO_ANSWER, ENDED = "gave nothing within {:.0f} s", "was ended by {}"
"""What a verdict says of a case that hangs, and of one that ended its process."""


def process_report(
    case: Case,
    target: str,
    property: str,
    mode: str,
    masked_rows: MaskedRows | None,
    message: str,
) -> dict[str, Any]:
    """The failure report of a case that gave no result, schema 1."""
    return {
        "schema": 1,
        "target": target,
        "property": property,
        "mode": mode,
        "masked_rows": masked_rows,
        "case": case.to_dict(),
        "verdict": Verdict(PROCESS, message).to_dict(),
        "environment": environment.versions(),
    }
