"""The process that a person starts: keeps workers at work, counts, and ends well in every case."""

import itertools
import os
import pathlib
import signal
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from properties.cases.case import CaseError
from properties.drawing.covering import covering_sets
from properties.drawing.space import Space
from properties.fuzzing import entries, journal
from properties.fuzzing.book import Book
from properties.fuzzing.exchange import Exchange
from properties.fuzzing.folder import Folder
from properties.fuzzing.ledger import Ended, Ledger, Open, journals
from properties.fuzzing.progress import Progress, duration
from properties.fuzzing.reducer import Reducer
from properties.fuzzing.shards import Shard
from properties.fuzzing.slot import Slot
from properties.fuzzing.worker import CANNOT_WRITE
from properties.judging.targets import MaskedRows, TargetError
from properties.shrinking.patience import Patience

_SECONDS_PER_DAY = 24 * 3600

# Seconds: between two looks at the workers, two savings, two exchanges of what was visited; for
# workers to end their cases at the end.
_LOOK, _SAVE, _SHARE, _ENDING = 0.05, 30.0, 30.0, 5.0

# Of cases: none of them, the compiling ones neither, takes that long on a machine that is in use.
_FIRST, _LEAST = 300.0, 30.0

# Workers in a row that end before they begin a case.
_MOST_STILLBORN = 5


@dataclass(frozen=True)
class Plan:
    """What a job is to do. budget: seconds; out: the folder of the job."""

    target: str
    mode: str
    masked_rows: MaskedRows | None
    generations: tuple[str, ...]
    budget: float
    workers: int
    shard: Shard
    out: pathlib.Path
    database: str | None


class Interruption:
    """While in the `with` block, SIGINT and SIGTERM end the job at its next look. A second one ends
    it at once, and loses no more than if it were killed."""

    def __init__(self) -> None:
        self.by = ""  # the signal's name, once there is one

    def __enter__(self) -> "Interruption":
        signals = (signal.SIGINT, signal.SIGTERM)
        self._before = {each: signal.signal(each, self._note) for each in signals}
        return self

    def __exit__(self, *exception: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: object) -> None:
        self.by = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)


class Job:
    """One run of the job in its folder. After `run`, `book` and `ledger` have what was found and
    counted, since the folder was made.

    trouble: why it could not go on, empty if it could.
    """

    def __init__(self, plan: Plan, progress: Progress, interruption: Interruption) -> None:
        """Starts the first worker. Raises ValueError for a plan that cannot be carried out."""
        self._plan, self._progress = plan, progress
        self.trouble = ""
        self._interruption = interruption
        self._folder = Folder(plan.out)
        state = self._folder.load() or {}
        self._seed = state.get("seed") or os.urandom(16).hex()
        self._process = state.get("process", 0)
        self._patience: defaultdict[str, Patience] = defaultdict(lambda: Patience(_FIRST, _LEAST))
        self._tails: dict[int, journal.Tail] = {}
        if state and state["target"] != plan.target:
            self._folder.close()
            raise ValueError(
                f"--out {plan.out}: holds a run of {state['target']}; give another folder"
            )
        exchange = Exchange(
            self._folder.examples, plan.database, entries.key_of(plan.target), progress.say
        )
        processes = journals(self._folder.journals)
        self._process = max([self._process, *processes])
        hello, first = self._first_worker()
        self.masked_rows: MaskedRows = hello["masked_rows"]
        of = Space(**hello["restrictions"] | {"dtypes": tuple(hello["restrictions"]["dtypes"])})
        self.ledger = Ledger(of)
        first.join(self.ledger, self._heard)
        reducer = Reducer(plan.target, plan.mode, self.masked_rows)
        how = (plan.target, plan.mode, self.masked_rows)
        self.book = Book(self._folder, exchange, reducer, self.ledger, how, progress.say)
        # What there is to visit is counted beside the work: on a busy machine it takes long.
        self._counting = threading.Thread(target=self._count_triples, daemon=True)
        self._counting.start()
        self._slots = [first, *(self._slot() for _ in range(plan.workers - 1))]
        self._covering = self._covering_choices(of, gradients=hello["gradients"])
        self._resume(state, processes)
        exchange.wait()
        self._configurations = len(self.ledger.tally.configurations)
        self._stillborn = 0
        self._lent: Slot | None = None  # whose place a reduction has
        self._cases = self.ledger.cases
        self._instruct(first, 0)
        self._began = time.monotonic()

    def _count_triples(self) -> int:
        return self.ledger.tally.triples.legal

    def _slot(self) -> Slot:
        slot = Slot()
        slot.join(self.ledger, self._heard)
        return slot

    def _first_worker(self) -> tuple[dict[str, Any], Slot]:
        slot = Slot()
        try:
            return self._start(slot, self._plan.masked_rows), slot
        except TargetError:
            self._folder.close()
            raise

    def _start(self, slot: Slot, masked_rows: MaskedRows | None) -> dict[str, Any]:
        self._process += 1
        log = self._folder.logs / f"{self._process:06}.log"
        how = (self._plan.target, self._plan.mode, masked_rows)
        return slot.start(self._process, *how, self._folder.journals, log)

    @staticmethod
    def _covering_choices(of: Space, *, gradients: bool) -> dict[str, list[list[int]]]:
        """Other cases each day, the same on all machines that share them."""
        seed = int(time.time()) // _SECONDS_PER_DAY
        sets = covering_sets(of, seed, gradients=gradients)
        return {
            name: [list(map(int, drawn.choices)) for drawn in sets.get(name, [])]
            for name in (("outputs", "gradients") if gradients else ("outputs",))
        }

    def _resume(self, state: dict[str, Any], processes: dict[int, list[pathlib.Path]]) -> None:
        """Goes on from the state and the journals of an earlier run in the folder."""
        if not state and not processes:
            return
        if state:
            self.book.restore(state["findings"])
            for left in state.get("left", ()):
                self.book.leave(Open.from_data(left))
            if not self.ledger.restore(state["ledger"]):
                self._progress.say("the target claims other cases than before: counted anew")
        read: dict[str, list[Any]] = state.get("journals", {})
        for process, paths in processes.items():
            if process == self._process:
                continue  # that of the first worker
            name, offset = read.get(str(process), (paths[0].name, 0))
            for path in paths:
                if path.name < name:
                    path.unlink()  # counted: the job was killed before it removed it
            tail = journal.Tail(self._folder.journals / name, offset)
            self._follow(process, tail)
            if left := self.ledger.open.get(process):
                # Ended with the job, not by the case: that is seen when it is run again.
                journal.append(tail.path, {"interrupted": left.number})
                self._follow(process, tail)
            self._tails[process] = tail
        self.book.ask_known()
        self._progress.say(
            f"resumed in {self._folder.path}: {self.ledger.cases:,} cases before, failures: "
            f"{len(self.book.findings.current)}"
        )

    def _follow(self, process: int, tail: journal.Tail) -> None:
        for record in tail.records():
            try:
                ended = self.ledger.take(process, record)
            except CaseError as error:
                self._progress.say(f"{tail.path}: a line refused: {error}")
                continue
            if ended is not None:
                self._heard(ended)

    def _instruct(self, slot: Slot, index: int) -> None:
        shard, workers = self._plan.shard, self._plan.workers
        slot.tell(
            {
                "journal": str(self._folder.journals.absolute()),  # a target may change folders
                "process": slot.process,
                "seed": f"{self._seed}/{shard}/{slot.process}",
                "part": shard.index * workers + index,
                "parts": shard.count * workers,
                "generations": list(self._plan.generations),
                "used": dict(self.ledger.used),
                "done": sorted(self.ledger.done),
                "avoid": sorted(self.ledger.avoid),
                "covering": self._covering,
                "visited": self._visited(),
            }
        )

    def _visited(self) -> dict[str, str]:
        return {name: self.ledger.visited[name].to_data() for name in self._covering}

    def _heard(self, ended: Ended) -> None:
        if not ended.how:
            self._patience[ended.begun.property].took(ended.begun.case, ended.seconds)
        self.book.heard(ended)

    def run(self) -> None:
        """Until the budget is spent, or a signal ends it."""
        for step in (self._work, self._end, self._close):
            try:
                step()
            except OSError as error:  # a disk that is full
                self.trouble = f"{error.filename or self._folder.path}: {error.strerror or error}"

    @property
    def _over(self) -> bool:
        return bool(self._interruption.by or self.trouble or self.elapsed > self._plan.budget)

    @property
    def cases(self) -> int:
        """How many cases this run of the job has run."""
        return self.ledger.cases - self._cases

    @property
    def elapsed(self) -> float:
        """Seconds since the first worker was told what to do."""
        return time.monotonic() - self._began

    def _work(self) -> None:
        shared = saved = time.monotonic()
        while not self._over:
            self.book.look()
            for index, slot in enumerate(self._slots):
                self._look_after(slot, index)
            if (
                not self.book.reducing
                and self.book.to_reduce
                and not any(slot.free or slot.stopping for slot in self._slots)
            ):
                self._slots[-1].stop()
            now = time.monotonic()
            if now - shared > _SHARE:
                shared = now
                for slot in self._slots:
                    slot.tell({"visited": self._visited()})
            if now - saved > _SAVE:
                saved = now
                self._save()
            if self._progress.due:
                self._progress.show(self._line())
            time.sleep(_LOOK)

    def _look_after(self, slot: Slot, index: int) -> None:
        if not slot.free:
            code = slot.watch(lambda name: self._patience[name], self._hangs)
            if code is None:
                if not slot.stopping:
                    self.book.hand_out(slot)
                return
            self._ended(slot, code)
        if self._over:
            return
        if self.book.to_reduce and not self.book.reducing:
            self.book.reduce()
            self._lent = slot
        if self.book.reducing and self._lent is slot:
            return
        try:
            self._start(slot, self.masked_rows)
        except TargetError as error:
            self._failed_to_begin(str(error))
            return
        self._instruct(slot, index)

    def _ended(self, slot: Slot, code: int) -> None:
        assert slot.tail is not None
        self._tails[slot.process] = slot.tail
        self.book.take_back(slot)
        if code == CANNOT_WRITE:
            self.trouble = f"{self._folder.journals}: no journal can be written there"
        if slot.begun:
            self._stillborn = 0
        elif not slot.stopping:
            self._failed_to_begin(f"see {self._folder.logs}")

    def _failed_to_begin(self, why: str) -> None:
        self._stillborn += 1
        if self._stillborn >= _MOST_STILLBORN:
            self.trouble = f"workers end before they begin a case: {why}"

    def _hangs(self, case: Open) -> bool:
        return self.book.is_known_to_hang(case.case)

    def _line(self) -> str:
        tally = self.ledger.tally
        new = len(tally.configurations) - self._configurations
        triples = ""
        if not self._counting.is_alive():
            triples = f"{tally.triples.visited:,} of {tally.triples.legal:,} triples  "
        failures = len(self.book.findings.current)
        reducing = ", reducing one" if self.book.reducing else ""
        return (
            f"{duration(self.elapsed)} of {duration(self._plan.budget)}  "
            f"{self.cases:,} cases  "
            f"{60 * new / max(self.elapsed, 1):.0f} configurations a minute  {triples}"
            f"{failures} failure{'' if failures == 1 else 's'}{reducing}"
        )

    def _end(self) -> None:
        """Ends the workers, between two cases if they come to that in time, and saves all."""
        for slot in self._slots:
            slot.stop()
        end = time.monotonic() + _ENDING
        self.book.stop()
        while any(not slot.free for slot in self._slots):
            for slot in self._slots:
                if slot.free:
                    continue
                if time.monotonic() > end:
                    slot.kill()
                elif slot.watch(lambda name: self._patience[name], lambda case: False) is None:
                    continue
                assert slot.tail is not None
                self._tails[slot.process] = slot.tail
            time.sleep(_LOOK)
        self._progress.show(self._line())
        self._save()

    def _close(self) -> None:
        self.book.close()
        self._folder.close()

    def _save(self) -> None:
        """Saves all that is counted, then removes the journals that say no more than that."""
        tails = dict(self._tails)
        tails |= {slot.process: slot.tail for slot in self._slots if slot.tail is not None}
        self._folder.save(
            {
                "target": self._plan.target,
                "seed": self._seed,
                "process": self._process,
                "ledger": self.ledger.data(),
                "findings": self.book.findings.data(),
                "left": [each.to_data() for each in self.book.left],
                "journals": {
                    str(process): [tail.path.name, tail.offset] for process, tail in tails.items()
                },
            }
        )
        working = {slot.process for slot in self._slots if not slot.free}
        for process, tail in tails.items():
            ended = [] if process in working else [tail.path]
            for path in itertools.chain(tail.read, ended):
                path.unlink(missing_ok=True)
            tail.read.clear()
        self._tails.clear()
