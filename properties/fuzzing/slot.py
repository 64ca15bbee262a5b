"""A place for one worker after the other, with the watchdog that ends one whose case hangs."""

import os
import pathlib
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from properties.fuzzing import journal, worker
from properties.fuzzing.ledger import Ended, Ledger, Open
from properties.judging.targets import MaskedRows
from properties.shrinking.child import Child
from properties.shrinking.patience import Patience
from properties.shrinking.trials import ENDED, NO_ANSWER

# Times that a case is run again of which the process was asked to end.
_MOST_INTERRUPTED = 2

_SAYING_WHERE = 1.0  # seconds that a process has to say where it hangs


class Slot:
    """One process at a time. What its journal says goes to a ledger, then to `heard`."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._sender: _Sender | None = None
        self._tail: journal.Tail | None = None
        self.process = 0
        self._log = pathlib.Path()
        self._limited: tuple[int, float] = (0, 0.0)
        self.begun = 0  # cases of the process that is there
        self.stopping = False
        self.asked: dict[str, dict[str, Any]] = {}  # replays that were asked for and not begun

    def join(self, ledger: Ledger, heard: Callable[[Ended], None]) -> None:
        """To be called before anything is heard."""
        self._ledger, self._heard = ledger, heard

    @property
    def free(self) -> bool:
        return self._child is None

    @property
    def tail(self) -> journal.Tail | None:
        return self._tail

    def start(
        self,
        process: int,
        target: str,
        mode: str,
        masked_rows: MaskedRows | None,
        journals: pathlib.Path,
        log: pathlib.Path,
    ) -> dict[str, Any]:
        """Starts a worker, gives what it says of the target. Raises TargetError."""
        self._child = child = Child(worker.work, target, (mode, masked_rows, str(log)))
        self._sender = _Sender(child)
        self.process, self._log = process, log
        self._tail = journal.Tail(journals / journal.name(process))
        self.begun, self.stopping = 0, False
        return child.hello

    def tell(self, message: dict[str, Any]) -> None:
        """To a worker that may have ended, of which `watch` will tell."""
        if self._sender is not None:
            self._sender.tell(message)

    def replay(self, asked: dict[str, Any]) -> None:
        self.asked[asked["id"]] = asked
        self.tell({"replay": [asked]})

    def stop(self) -> None:
        if self._child is not None and not self.stopping:
            self.stopping = True
            self.tell({"stop": True})

    def listen(self) -> None:
        """Counts what is new in the journal."""
        assert self._tail is not None
        for record in self._tail.records():
            if "begin" in record:
                self.begun += 1
                self.asked.pop(record.get("replay") or "", None)
            ended = self._ledger.take(self.process, record)
            if ended is not None:
                self._heard(ended)

    def watch(
        self, patience: Callable[[str], Patience], brief: Callable[[Open], bool]
    ) -> int | None:
        """Ends a worker whose case takes too long. The exit code of one that has ended, None while
        it works. brief: whether a case is one that hangs, as is known."""
        child = self._child
        assert child is not None
        alive = child.alive
        self.listen()
        if not alive:
            return self._reaped()
        case = self._ledger.open.get(self.process)
        if case is None:
            return None
        if self._limited[0] != case.number:
            limit = patience(case.property).limit(case.case)
            if brief(case):
                limit = min(limit, BRIEF)
            self._limited = case.number, limit
        limit = self._limited[1]
        if time.monotonic() - case.since < limit:
            return None
        os.kill(child.pid, worker.WHERE)
        time.sleep(_SAYING_WHERE)
        self.listen()  # it may have ended just now
        if self._ledger.open.get(self.process) is not case:
            return None
        child.kill()
        self._end()
        self._lost(NO_ANSWER.format(limit), hung=True)
        return 0

    def kill(self) -> None:
        """Ends the worker with the job: its case is none that hangs."""
        if self._child is None:
            return
        self._child.kill()
        self._end()
        self._log.unlink(missing_ok=True)
        self.listen()
        case = self._ledger.open.get(self.process)
        if case is not None:
            self._append({"interrupted": case.number})

    def _reaped(self) -> int:
        how, code = self._end()
        self.listen()
        case = self._ledger.open.get(self.process)
        outside = code == -signal.SIGTERM
        if case is not None and outside and self._ledger.interruptions(case) < _MOST_INTERRUPTED:
            # Somebody ends all processes of the job, rather than the case its own: then it does so
            # again.
            self._append({"interrupted": case.number})
        elif case is not None and code != worker.CANNOT_WRITE:
            self._lost(ENDED.format(how), hung=False)
        elif code == 0:
            self._log.unlink(missing_ok=True)
        return code

    def _end(self) -> tuple[str, int]:
        """Takes leave of a process that has ended or was killed: how it ended, and its code."""
        assert self._child is not None
        assert self._sender is not None
        self._sender.end()
        how = self._child.end()
        code = self._child.code
        self._child = self._sender = None
        return how, code

    def _lost(self, how: str, *, hung: bool) -> None:
        case = self._ledger.open[self.process]
        seconds = time.monotonic() - case.since
        record = {"lost": case.number, "how": how, "hung": hung, "seconds": round(seconds, 3)}
        self._append(record | {"log": self._log.name})

    def _append(self, record: journal.Record) -> None:
        assert self._tail is not None
        journal.append(self._tail.path, record)
        self.listen()


class _Sender:
    """Sends messages in a thread: a process that hangs and lets none of its threads run reads
    nothing, and the job, which is to end it, must not wait for that."""

    def __init__(self, child: Child) -> None:
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(child,), daemon=True)
        self._thread.start()

    def tell(self, message: dict[str, Any]) -> None:
        self._messages.put(message)

    def end(self) -> None:
        """To be called once the process has ended, which a message on its way is then told."""
        self._messages.put(None)
        self._thread.join(1.0)

    def _run(self, child: Child) -> None:
        while (message := self._messages.get()) is not None:
            try:
                child.send(message)
            except OSError:
                return


BRIEF = 10.0
"""Seconds for a case that has all that the minimal case of a known hang has."""
