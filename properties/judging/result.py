"""What a property found on a case, and the one way in which properties run a target."""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from properties import engines
from properties.cases.case import Case, CaseError
from properties.judging.targets import Target
from properties.judging.verdict import Verdict, raised

# "auto" is the fastest engine that can run the target, or the chip where one is attached.
CHIP = "tpu"
MODES = ("auto", "interpret", "tpu-interpret", "numpy", CHIP)

# How a target that is not held to the whole contract says that it will not do a call.
REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclasses.dataclass
class Result:
    """What one property, called `name`, found on one case.

    `mode` is the engine that ran last, or what was asked for where none did; `ran` all that ran,
    compilers included. `rows` counts the rows of
    queries that were judged, `untested_rows` those among them of which the bound says nothing.
    `refused` and `skipped` say why there is nothing to judge: the target refused, or never claimed
    the case. `fallback` says why a slower engine than the first had to run. `got` is what the
    target gave last, None if nothing.
    """

    name: str
    case: Case
    mode: str
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    rows: int = 0
    untested_rows: int = 0
    refused: str = ""
    skipped: str = ""
    fallback: str = ""
    ran: list[str] = dataclasses.field(default_factory=list)
    oracle_seconds: float = 0.0
    got: Any = None

    @property
    def failure(self) -> Verdict | None:
        """The first verdict that does not pass."""
        return next((each for each in self.verdicts if not each.passed), None)

    def add(self, other: "Result") -> None:
        """Joins what the same case gave in another engine."""
        self.mode = other.mode
        self.verdicts += other.verdicts
        self.rows += other.rows
        self.untested_rows += other.untested_rows
        self.refused = self.refused or other.refused
        self.ran += other.ran
        self.oracle_seconds += other.oracle_seconds

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Counts the time inside the `with` block as the oracle's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.oracle_seconds += time.perf_counter() - start


def engines_for(mode: str) -> tuple[str, ...]:
    """The engines to try in turn: a chip alone, or the fastest one first."""
    if mode != "auto":
        return (mode,)
    if engines.tpu_attached():
        return (CHIP,)
    return ("numpy", "interpret")


def attempt(result: Result, target: Target, trace: Callable[[], Any], *args: Any) -> Any | None:
    """Traces and runs a program; None, with the reason in `result`, if that gives nothing."""
    return begin(result, target, trace, *args)()


def begin(
    result: Result, target: Target, trace: Callable[[], Any], *args: Any
) -> Callable[[], Any | None]:
    """Traces a program, and starts it where that is on a chip; what this returns is as `attempt`.

    Whatever comes out of the target's code is a finding about the target. It may be any exception,
    so every one is caught here; none is lost, because it becomes a verdict that fails. Only a case
    that cannot be read says nothing of the target: CaseError goes on to the caller.
    """
    try:
        program = trace()
    except CaseError:
        raise
    except Exception as error:
        if isinstance(error, REFUSALS) and not target.strict:
            result.refused = _kind_of(error)
        else:
            result.verdicts.append(raised(error, "the call"))
        return lambda: None
    if engines_for(result.mode) != (CHIP,):
        return lambda: _run(result, program, *args)
    fetch = None
    try:
        fetch = program.send(*args)
    except Exception as error:
        result.verdicts.append(raised(error, f"running in {CHIP}"))
    return lambda: _fetched(result, fetch)


def _fetched(result: Result, fetch: Callable[[], Any] | None) -> Any | None:
    """What was sent to the chip, if it could be sent."""
    result.mode = CHIP
    result.ran.append(CHIP)
    try:
        result.got = fetch and fetch()
    except Exception as error:
        result.verdicts.append(raised(error, f"running in {CHIP}"))
        result.got = None
    return result.got


def _run(result: Result, program: Any, *args: Any) -> Any | None:
    for engine in engines_for(result.mode):
        try:
            result.got = program.run(engine, *args)
        except engines.Unsupported as error:
            result.fallback = str(error)
            continue
        except Exception as error:
            result.verdicts.append(raised(error, f"running in {engine}"))
            result.got = None
        result.mode = engine
        result.ran.append(engine)
        return result.got
    result.skipped = result.fallback
    return None


def _kind_of(error: Exception) -> str:
    """The refusal without its numbers and its length, so that alike ones are counted together."""
    text = re.sub(r"[\d.]+", "N", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:70]}"
