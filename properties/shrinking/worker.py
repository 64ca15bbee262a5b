"""The process that runs cases: one after another, until a case ends it."""

import json
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from properties import engines, environment
from properties.cases.case import Case, CaseError
from properties.claims import checks
from properties.judging.result import CHIP, engines_for
from properties.judging.targets import MaskedRows, Target, TargetError
from properties.session import failure


def work(connection: Connection, name: str, mode: str, masked_rows: MaskedRows | None) -> None:
    """Loads the target, then answers each case that it is sent.

    Both ways go JSON texts. An answer to a case, with the properties to hold it to, has "report",
    the first failure or None, and "trouble", why the case is none of theirs, or None. What else the
    harness may raise ends the process, as a crash does.
    """
    # Ctrl-C is for the process that asks: it ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment.settle()
    # A target's words, and those of what aborts it, are no part of the progress.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        if engines_for(mode) == (CHIP,):
            engines.claim_chip()
        target = Target.load(name, masked_rows)
    except TargetError as error:
        _send(connection, {"trouble": str(error)})
        return
    _send(connection, {"trouble": None, "masked_rows": target.masked_rows})
    while True:
        try:
            job = json.loads(connection.recv_bytes())
        except EOFError:
            return
        case = Case.from_json(job["case"], job["folder"])
        _send(connection, _answer(case, job["properties"], target, mode))


def _answer(case: Case, properties: list[str], target: Target, mode: str) -> dict[str, Any]:
    trouble = None
    for name in properties:
        try:
            result = checks.PROPERTIES[name](case, target, mode)
        except CaseError as error:
            trouble = str(error)
            continue
        if result.failure is not None:
            return {"report": failure.report(result, target, result.failure), "trouble": None}
        trouble = result.skipped or None
    return {"report": None, "trouble": trouble}


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())
