"""The process that draws and runs cases, one after another, until it is told to stop.

All it finds goes into its journal. Its output, and what Python says where it crashes or is asked
where it hangs, go into a log.
"""

import faulthandler
import json
import os
import pathlib
import queue
import random
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import jax

from properties import engines, environment
from properties.cases.case import Case, CaseError
from properties.claims import checks
from properties.drawing import covering, space
from properties.drawing.guide import Guide
from properties.fuzzing import journal, suite
from properties.fuzzing.turns import Turns
from properties.judging.result import CHIP, engines_for
from properties.judging.targets import MaskedRows, Target, TargetError
from properties.session import failure

CANNOT_WRITE = 74
"""The exit code of a worker whose journal takes nothing more: EX_IOERR of sysexits.h."""

WHERE = signal.SIGUSR1
"""Makes a worker say in its log where it is."""

# Bytes of memory at which a process gives back what it keeps, and beyond which it then ends for
# another: far enough apart that it does not compile all of it anew after every case.
_CLEARS_AT, _ENDS_ABOVE = 1200 * 2**20, 900 * 2**20
_MOST_LOG = 4 * 2**20

# Batches of a test without a case that has not been run, after which there is none.
_BARREN = 3


def work(
    connection: Connection, name: str, mode: str, masked_rows: MaskedRows | None, log: str
) -> None:
    """Loads the target, says what it claims, is told what to do, and does it.

    The plan is a JSON object with "journal" (a folder) and "process" (the number of this one);
    "seed"; "part" and "parts", of all processes of all machines; "generations"; "used" seconds by
    test; "done", tests; "avoid", digests of cases that ended a process; "covering", choices by
    property; "visited", triples by property. Later come {"replay": [...]}, {"visited": {...}} and
    {"stop": true}. The process ends with the one that sends these.
    """
    # Ctrl-C is for the job: it tells the workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    faulthandler.enable(file=sys.__stderr__ or 2)
    faulthandler.register(WHERE, file=sys.__stderr__ or 2)
    environment.settle()
    try:
        if engines_for(mode) == (CHIP,):
            engines.claim_chip()
        target = Target.load(name, masked_rows)
    except (TargetError, engines.NoFreeChip) as error:
        connection.send_bytes(json.dumps({"trouble": str(error)}).encode())
        return
    hello = {
        "trouble": None,
        "masked_rows": target.masked_rows,
        "restrictions": target.restrictions,
        "gradients": "gradients" in target.features,
    }
    connection.send_bytes(json.dumps(hello).encode())
    plan = json.loads(connection.recv_bytes())
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    worker = _Worker(target, mode, plan, messages, file)
    try:
        worker.run()
    except OSError as error:
        if not worker.writing:
            raise
        print(error, file=sys.stderr, flush=True)
        os._exit(CANNOT_WRITE)
    # Threads of a target that do not end would keep the process.
    sys.stdout.flush()
    os._exit(0)


def _listen(connection: Connection, messages: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Ends the process with the one that started it, even in a case that hangs."""
    while True:
        try:
            messages.put(json.loads(connection.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)


class _Worker:
    def __init__(
        self,
        target: Target,
        mode: str,
        plan: dict[str, Any],
        messages: "queue.SimpleQueue[dict[str, Any]]",
        log: int,
    ) -> None:
        self._target, self._mode, self._messages, self._log = target, mode, messages, log
        self._journal = journal.Journal(pathlib.Path(plan["journal"]), plan["process"])
        self._chosen = random.Random(plan["seed"])
        self._collector = suite.Collector(target, plan["generations"])
        part, parts = plan["part"], plan["parts"]
        self._turns = Turns(suite.tests(), plan["used"], part=part, parts=parts, done=plan["done"])
        self._guides = {
            name: self._guide(name, choices, part, parts, plan["visited"].get(name, ""))
            for name, choices in plan["covering"].items()
        }
        self._run_before = {int(each, 16) for each in plan["avoid"]}
        self._drawn: dict[str, deque[suite.Example]] = {}
        self._barren: dict[str, int] = {}
        self._replays: deque[dict[str, Any]] = deque()
        self._number = 0
        self._stopping = False
        self.writing = False

    def _guide(
        self, name: str, choices: list[list[int]], part: int, parts: int, visited: str
    ) -> Guide:
        of = space.Space(**self._target.restrictions)
        of = replace(of, backward=True) if name == "gradients" else of
        whole = [covering.redrawn(of, each) for each in choices]
        return Guide(of, whole, part, parts, visited=visited)

    def run(self) -> None:
        while not self._over():
            if self._replays:
                self._replay(self._replays.popleft())
                continue
            test = self._turns.next()
            if test is None:
                return
            since = time.monotonic()
            self._test(test)
            self._turns.took(test, time.monotonic() - since)

    def _over(self) -> bool:
        """Heeds what was said meanwhile; whether this process is to end."""
        while not self._messages.empty():
            message = self._messages.get()
            self._stopping |= message.get("stop", False)
            self._replays.extend(message.get("replay", ()))
            for name, visited in message.get("visited", {}).items():
                self._guides[name].learn(visited)
        if os.fstat(self._log).st_size > _MOST_LOG:
            os.ftruncate(self._log, 0)
        if not self._stopping and _memory() > _CLEARS_AT:
            jax.clear_caches()
            environment.give_back_memory()
            self._stopping = _memory() > _ENDS_ABOVE
        return self._stopping

    def _test(self, test: suite.Test) -> None:
        """Runs the next example of a test."""
        drawn = self._drawn.setdefault(test.name, deque())
        if not drawn:
            guide = self._guides.get(test.covering or "")
            seed = f"{self._chosen.getrandbits(128):x}"
            drawn.extend(filter(None, map(self._new, test.examples(self._collector, seed, guide))))
            barren = self._barren[test.name] = 0 if drawn else self._barren.get(test.name, 0) + 1
            if not drawn and (barren == _BARREN or not test.drawn):
                self._end_of(test)
            if not drawn:
                return
        example = deque(drawn.popleft())
        while example:
            job = example.popleft()
            self._case(job.property, job.case, test=test.name)
            if example and (self._over() or self._replays):
                drawn.appendleft(list(example))
                return
        if not test.drawn:
            self._end_of(test)

    def _end_of(self, test: suite.Test) -> None:
        self._turns.end(test)
        if not test.drawn:
            self._write({"done": test.name})

    def _new(self, example: suite.Example) -> suite.Example:
        """What of an example has not been run: small spaces soon repeat themselves."""
        new = []
        for job in example:
            known = int(journal.digest(job.property, job.case), 16)
            if known not in self._run_before:
                self._run_before.add(known)
                new.append(job)
        return new

    def _replay(self, asked: dict[str, Any]) -> None:
        case = Case.from_json(asked["case"], asked.get("folder", ""))
        self._case(asked["property"], case, replay=asked["id"])

    def _case(self, name: str, case: Case, **origin: Any) -> None:
        self._number += 1
        begin = {
            "begin": self._number,
            "time": round(time.time(), 3),
            "property": name,
            "case": case.to_dict(),
            "folder": str(case.folder),
        }
        self._write(begin | origin)
        since, cpu, stages = time.perf_counter(), time.process_time(), engines.STAGES.snapshot()
        end: dict[str, Any] = {"end": self._number}
        try:
            result = checks.PROPERTIES[name](case, self._target, self._mode)
        except CaseError as error:
            end["skipped"] = str(error)  # a replay of what is no case here
        else:
            end["result"] = journal.outcome(result)
            if result.failure is not None:
                end["report"] = failure.report(result, self._target, result.failure)
        end["seconds"] = round(time.perf_counter() - since, 6)
        end["cpu_seconds"] = round(time.process_time() - cpu, 6)
        spent = engines.STAGES.snapshot()
        end["stages"] = {each: round(spent[each] - stages[each], 6) for each in spent}
        self._write(end)

    def _write(self, record: journal.Record) -> None:
        self.writing = True
        self._journal.write(record)
        self.writing = False


def _memory() -> int:
    """Bytes of memory in use, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0
