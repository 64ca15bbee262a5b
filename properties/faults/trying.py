"""Mutants put to trials, each in a child of one warm process.

A child begins with everything imported and every case drawn, so that a mutant costs little but the
trials that it survives.  It may run for ever, take all memory or end the process: none of that
reaches the parent.  Forking needs a system that can, and a parent in which no engine has run yet:
threads do not survive a fork.
"""

import math
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from properties import environment
from properties.faults import reach
from properties.faults.mutants import Mutant
from properties.faults.planting import planted_package
from properties.faults.trials import Trial

# Of a trial, which takes a second at most: an endless loop is one long before.
_CPU_SECONDS = 30

# Of a child that waits for what never comes, so that it uses no processor.
_SECONDS = 900

# Beyond what the parent has mapped.  No case has arrays of more than some megabytes.
_BYTES = 6 * 2**30

_context = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `killed_by` names the property that failed, None if none did; "the
    import", "the clock" and "the process" are not properties, and kill as well.

    trials: how many it was put to, the one that killed it included.
    """

    killed_by: str | None
    message: str
    trials: int
    cpu_seconds: float


class KernelFails(ValueError):
    """The kernel fails a trial as it is, so that nothing can be said of its mutants."""


def reaches_of(trials: Sequence[Trial]) -> list[reach.Lines]:
    """The lines that each trial runs. Raises KernelFails if the kernel fails one of them."""

    def record(send: Callable[[Any], None]) -> None:
        for trial in trials:
            send(reach.of(trial))

    received, died = _child(record)
    if died:
        raise KernelFails(f"the kernel itself ends in {died} at {trials[len(received)]}")
    for trial, (_, failure) in zip(trials, received, strict=True):
        if failure:
            raise KernelFails(f"the kernel itself fails {trial}: {failure}")
    return [lines for lines, _ in received]


def lines_at_import() -> reach.Lines:
    """The lines that importing the kernel runs."""
    (lines,), _ = _child(lambda send: send(reach.at_import()))
    return lines


def attempt(mutant: Mutant, trials: Sequence[Trial], *, cpu_seconds: int = _CPU_SECONDS) -> Outcome:
    """Puts a mutant to trials until one fails. Each is granted so much time."""

    def work(send: Callable[[Any], None]) -> None:
        for name, message in _failures(mutant, trials):
            send((name, message))
            if message:
                return

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    received, died = _child(work, cpu_seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The first is the import.
    tried = max(len(received) - 1, 0)
    if died:
        return Outcome(died, "", tried + 1, seconds)
    name, message = received[-1]
    return Outcome(name if message else None, message, tried, seconds)


def _failures(mutant: Mutant, trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    """The import and each trial by name, with what fails, "" if nothing does."""
    # Whatever a mutant raises, wherever, would fail the suite; none of it is lost, it is reported.
    try:
        package = planted_package({mutant.module: mutant.source})
    except Exception as error:
        yield "the import", _shown(error)
        return
    yield "the import", ""
    for trial in trials:
        try:
            failure = trial.failure(package)
        except Exception as error:
            yield trial.property, _shown(error)
            return
        yield trial.property, failure


def _shown(error: Exception) -> str:
    return f"raises {type(error).__name__}: {' '.join(str(error).split())}"


def _child(
    work: Callable[[Callable[[Any], None]], None], cpu_seconds: int = _CPU_SECONDS
) -> tuple[list[Any], str]:
    """What `work`, run in a child, sends, and how the child died, "" if it did not."""
    mine, its = _context.Pipe(duplex=False)
    child = _context.Process(target=_run, args=(work, its, cpu_seconds), daemon=True)
    with warnings.catch_warnings():
        # jax warns of every fork, because threads may hold locks: here it has started none.
        warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        child.start()
    its.close()
    received = []
    try:
        while mine.poll(_SECONDS):
            received.append(mine.recv())
    except EOFError:
        child.join()
    finally:
        child.kill()
        child.join()
    if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        return received, "the clock"
    return received, "the process" if child.exitcode else ""


def _run(
    work: Callable[[Callable[[Any], None]], None], connection: Connection, cpu_seconds: int
) -> None:
    """The life of a child: each message it sends grants it the time for another."""
    environment.settle()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + _BYTES, most))

    def send(message: Any) -> None:
        connection.send(message)
        _grant_time(cpu_seconds)

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    _grant_time(cpu_seconds)
    work(send)


def _grant_time(seconds: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, most))


def _mapped() -> int:
    """Bytes of address space in use."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
