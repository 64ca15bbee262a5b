"""`python -m kernel.benchmark`: what the kernel costs on TPUs, beside upstream's.

Exit code 0: done. 1: something could not be measured. 2: bad input, or a libtpu whose dumps
this cannot read; then what was recorded is printed.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kernel.benchmark import results, tables
from kernel.benchmark.compiling import Refused
from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.measuring import Cost, measure
from kernel.benchmark.notation import Unreadable
from kernel.benchmark.results import Key, Results, Row
from kernel.benchmark.schedule import READABLE
from kernel.benchmark.workloads import DEFAULT_BLOCK, LARGER_BLOCKS, PASSES, SHAPES

DONE, FAILED, BAD_INPUT = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        recorded = results.read(results.RECORDED)
        if options.recorded:
            _print_recorded(recorded)
            return DONE
        try:
            return _measure(options, recorded)
        except Unreadable as error:
            print(f"error: {error}; this was recorded:", file=sys.stderr)
            _print_recorded(recorded)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
    return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernel.benchmark",
        description="What the kernel costs on a TPU, from the compiler's schedule, without a TPU.",
    )
    parser.add_argument(
        "--generations",
        type=_names(GENERATIONS),
        default="v5e,v6e",
        metavar="NAMES",
        help=f"of {', '.join(GENERATIONS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--shapes",
        type=_names(SHAPES),
        default="2048,8192",
        metavar="NAMES",
        help=f"of {', '.join(SHAPES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--passes",
        type=_names(PASSES),
        default=",".join(PASSES),
        metavar="NAMES",
        help="default: %(default)s",
    )
    parser.add_argument("--recorded", action="store_true", help="print what was recorded, and end")
    parser.add_argument(
        "--afresh", action="store_true", help="measure upstream's kernel as well if it is recorded"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="write the results as data; other rows that the file has, of the same versions, stay",
    )
    return parser


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return names


def _print_recorded(recorded: Results) -> None:
    print(f"recorded with {tables.about(recorded)}")
    print("\n".join(tables.table(recorded)))


def _measure(options: argparse.Namespace, recorded: Results) -> int:
    measured = Results(_readable_versions(), {})
    same = measured.versions == recorded.versions
    if options.json is not None and options.json.exists():
        kept = results.read(options.json)
        if kept.versions != measured.versions:
            raise ValueError(f"--json {options.json}: was measured with {tables.about(kept)}")
        measured.rows.update(kept.rows)
    print(f"measured with {tables.about(measured)}")
    code = DONE
    for generation in options.generations:
        print("\n".join(tables.heading(generation)))
        for key in itertools.starmap(
            Key, itertools.product([generation], options.shapes, options.passes)
        ):
            earlier = recorded.rows.get(key) if same else None
            try:
                row = _row(key, None if options.afresh else earlier)
            except (Refused, Unreadable) as error:
                print(f"{key.shape:9} {key.which:8} {error}", flush=True)
                code = FAILED
                continue
            print(tables.line(key, row, earlier), flush=True)
            measured.rows[key] = row
            if options.json is not None:
                results.write(options.json, measured)
    return code


def _readable_versions() -> dict[str, str]:
    versions = results.versions()
    if not versions["libtpu"].startswith(READABLE):
        raise Unreadable(
            f"libtpu {versions['libtpu']} is installed, whose schedules this cannot read; "
            f"it can read those of {', '.join(READABLE)}"
        )
    return versions


def _row(key: Key, earlier: Row | None) -> Row:
    """Measures the kernel, and upstream's unless `earlier` has it. Raises Refused for the first."""
    ours = measure(*key, None)
    if earlier is not None:
        return earlier._replace(ours=ours)
    best, block = _first_that_compiles(key, LARGER_BLOCKS)
    return Row(ours, _first_that_compiles(key, (DEFAULT_BLOCK,))[0], best, block)


def _first_that_compiles(key: Key, blocks: tuple[int, ...]) -> tuple[Cost, int] | tuple[None, None]:
    for block in blocks:
        try:
            return measure(*key, block), block
        except Refused:
            continue
    return None, None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # Whoever read the output, `head` perhaps, has seen enough; nothing is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
