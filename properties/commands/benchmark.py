"""`python -m properties benchmark`: how fast the suite is here, and where the time goes.

Everything is measured in one run, in processes of their own that have done a few cases before.
Modes, properties and numbers of processes take turns in short slices: what else the machine does
disturbs all of them alike.  Rates are per CPU-minute, by `time.process_time`, which counts all
threads of a process; how well two processes share the machine needs the clock on the wall.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from properties import environment
from properties.commands import workload
from properties.commands.workload import PROPERTIES, STAGES, Measured
from properties.judging.targets import KERNEL

SCHEMA = 1

# New configurations a slice: an interpreter compiles each for a second, NumPy starts at once.
_SLICES = {"numpy": 8, "interpret": 2}

_RATE_SECONDS, _SCALING_SECONDS = 32.0, 3.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the result as data for a program")
    parser.add_argument(
        "--against", metavar="FILE", help="compare with an earlier result written by --json"
    )


def command(options: argparse.Namespace) -> int:
    """Measures for about a minute and prints; always 0. Raises ValueError for a file that cannot
    be read or written."""
    earlier = None if options.against is None else read(options.against)
    written = None if options.json is None else pathlib.Path(options.json)
    if written is not None and not written.absolute().parent.is_dir():
        raise ValueError(f"--json {written}: its folder does not exist")
    result = measure()
    print("\n".join(lines(result)))
    if earlier is not None:
        print("\n".join(comparison(result, earlier)))
    if written is not None:
        written.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def read(path: str) -> dict[str, Any]:
    """An earlier result. Raises ValueError, which names the file, for anything else."""
    try:
        result = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a benchmark result ({error})") from error
    schema = result.get("schema") if isinstance(result, dict) else None
    if schema != SCHEMA or "modes" not in result:
        raise ValueError(f"{path}: not a benchmark result of schema {SCHEMA} (schema {schema!r})")
    return result


def measure(
    rate_seconds: float = _RATE_SECONDS, scaling_seconds: float = _SCALING_SECONDS
) -> dict[str, Any]:
    """The result as JSON-ready data, schema 1.

    modes: by mode and property, "new" (every case in a configuration of its own) and "reuse" (each
    configuration with further data), with what was counted and the rates; in "new" also "stages",
    milliseconds of wall clock per configuration.  ratio: rates of numpy over interpret, by
    property.  scaling: cases per minute of wall clock of one process and of two at once in numpy,
    and their ratio; processor_share, the part of a processor that each process got, tells whether
    the machine had two to give.  rate_seconds and scaling_seconds are what the two take, about.
    """
    started = time.monotonic()
    environment.settle()
    with contextlib.ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        first, *pair = [
            stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in range(3)
        ]
        # Not the first: the memory of one that has compiled much is slower to walk.
        for ready in [pool.submit(workload.prepare, n) for n, pool in enumerate([first, *pair])]:
            ready.result()
        rates = _rates(first, rate_seconds)
        scaling = _scaling(pair, scaling_seconds)
    return {
        "schema": SCHEMA,
        "target": KERNEL,
        "modes": rates,
        "ratio": {
            name: _ratio(rates["numpy"][name], rates["interpret"][name]) for name in PROPERTIES
        },
        "scaling": scaling,
        "seconds": time.monotonic() - started,
        "load": os.getloadavg()[0],
        "environment": environment.versions(),
    }


def _rates(worker: ProcessPoolExecutor, seconds: float) -> dict[str, Any]:
    turns = [(mode, name) for name in PROPERTIES for mode in _SLICES]
    totals = {turn: {"new": Measured(), "reuse": Measured()} for turn in turns}
    end = time.monotonic() + seconds
    last_round = 0.0
    # Whole rounds, at least one: without a figure of each there is no ratio.
    while last_round == 0 or time.monotonic() + last_round < end:
        last_round = -time.monotonic()
        for mode, name in turns:
            done = worker.submit(workload.rates, 0, mode, name, _SLICES[mode]).result()
            for kind, measured in done.items():
                totals[mode, name][kind].add(measured)
        last_round += time.monotonic()
    return {
        mode: {
            name: {
                kind: _record(measured, with_stages=kind == "new")
                for kind, measured in totals[mode, name].items()
            }
            for name in PROPERTIES
        }
        for mode in _SLICES
    }


def _record(measured: Measured, *, with_stages: bool) -> dict[str, Any]:
    minutes = measured.cpu_seconds / 60
    record: dict[str, Any] = {
        "cases": measured.cases,
        "configurations": measured.configurations,
        "failures": measured.failures,
        "cpu_seconds": measured.cpu_seconds,
        "seconds": measured.seconds,
        "cases_per_cpu_minute": measured.cases / minutes,
        "configurations_per_cpu_minute": measured.configurations / minutes,
    }
    if with_stages:
        count = max(measured.configurations, 1)
        record["stages"] = {name: 1000 * measured.stages[name] / count for name in STAGES}
    return record


def _ratio(fast: Mapping[str, Any], slow: Mapping[str, Any]) -> float | None:
    below = slow["new"]["configurations_per_cpu_minute"]
    return fast["new"]["configurations_per_cpu_minute"] / below if below else None


def _scaling(pair: list[ProcessPoolExecutor], seconds: float) -> dict[str, Any]:
    totals = {"one": Measured(), "two": Measured()}
    turns = (("one", pair[:1]), ("two", pair), ("one", pair[1:]), ("two", pair))
    for name, used in turns:
        work = [
            pool.submit(workload.during, pair.index(pool) + 1, "numpy", seconds) for pool in used
        ]
        for each in work:
            totals[name].add(each.result())
    # `seconds` adds up over processes, also over those that ran at the same time.
    rate = {
        name: 60 * processes * totals[name].cases / totals[name].seconds
        for name, processes in (("one", 1), ("two", 2))
    }
    record: dict[str, Any] = {
        name: {
            "cases_per_minute": rate[name],
            "cases_per_cpu_minute": 60 * total.cases / total.cpu_seconds,
            "processor_share": total.cpu_seconds / total.seconds,
        }
        for name, total in totals.items()
    }
    record["ratio"] = rate["two"] / rate["one"]
    return record


def lines(result: Mapping[str, Any]) -> list[str]:
    """The result for a person."""
    versions = ", ".join(f"{name} {number}" for name, number in result["environment"].items())
    text = [
        f"{result['target']}, {versions}; load {result['load']:.1f}, {result['seconds']:.0f} s",
        "",
        "per CPU-minute         every case new    with further data",
        "                       configurations    configurations      cases",
    ]
    for mode, name, record in _records(result):
        new, reuse = record["new"], record["reuse"]
        text.append(
            f"{mode:11}{name:12}{new['configurations_per_cpu_minute']:14.0f}"
            f"{reuse['configurations_per_cpu_minute']:18.0f}{reuse['cases_per_cpu_minute']:11.0f}"
        )
    text.append("numpy / interpret      " + _listed(result["ratio"], "{:.1f}"))
    text += ["", "ms per new configuration" + "".join(f"{stage:>9}" for stage in STAGES)]
    for mode, name, record in _records(result):
        stages = record["new"]["stages"]
        text.append(f"{mode:11}{name:13}" + "".join(f"{stages[stage]:9.1f}" for stage in STAGES))
    scaling = result["scaling"]
    text += [
        "",
        "processes              cases per minute      per CPU-minute    share of a processor each",
    ]
    for name in ("one", "two"):
        record = scaling[name]
        text.append(
            f"{name:23}{record['cases_per_minute']:16.0f}{record['cases_per_cpu_minute']:20.0f}"
            f"{record['processor_share']:29.0%}"
        )
    text.append(f"two / one              {scaling['ratio']:16.2f}")
    failures = sum(
        record[kind]["failures"] for *_, record in _records(result) for kind in ("new", "reuse")
    )
    if failures:
        text.append(f"{failures} slices ended in a failure: run pytest properties first")
    return text


def comparison(result: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """This result over an earlier one: above 1 it has become faster."""
    before = {(mode, name): record for mode, name, record in _records(earlier)}
    text = ["", "now / earlier          every case new    with further data"]
    for mode, name, record in _records(result):
        then = before.get((mode, name))
        if then is not None:
            new, reuse = (
                _over(record[kind][rate], then[kind][rate])
                for kind, rate in (
                    ("new", "configurations_per_cpu_minute"),
                    ("reuse", "cases_per_cpu_minute"),
                )
            )
            text.append(f"{mode:11}{name:12}{new:>14}{reuse:>18}")
    if earlier["environment"] != result["environment"]:
        text.append(f"earlier: {_listed(earlier['environment'], '{}')}")
    return text


def _records(result: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for mode, properties in result["modes"].items():
        for name, record in properties.items():
            yield mode, name, record


def _over(now: float, then: float) -> str:
    return _number(now / then if then else None, "{:.2f}")


def _listed(named: Mapping[str, Any], form: str) -> str:
    return "  ".join(f"{name} {_number(value, form)}" for name, value in named.items())


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
