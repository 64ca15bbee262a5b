"""The commands of `python -m properties`."""

import argparse
import inspect
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import get_args

from oracle.contract import RULES
from properties.cases import values
from properties.claims import checks
from properties.commands import benchmark, replay, sensitivity
from properties.faults import catalogue
from properties.judging.result import MODES
from properties.judging.targets import KERNEL, MaskedRows

HOLDS, FAILS, BAD_INPUT = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0 it holds, 1 it fails, 2 bad input or usage."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ValueError as error:
        # Nothing of a target's raises here: what a case makes it raise is a verdict.
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m properties")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    replaying = commands.add_parser("replay", help="run one case and print the verdict table")
    replaying.add_argument(
        "source", metavar="CASE_OR_REPORT", help="a file, or - for JSON on standard input"
    )
    replaying.add_argument(
        "--target", metavar="MODULE:NAME", default=KERNEL, help="what is run (default: %(default)s)"
    )
    replaying.add_argument("--mode", choices=MODES, help="default: the report's")
    replaying.add_argument(
        "--masked-rows", choices=get_args(MaskedRows), help="default: the report's"
    )
    replaying.set_defaults(run=_replay)
    planting = commands.add_parser(
        "sensitivity", help="plant faults in the kernel: what finds them"
    )
    sensitivity.add_arguments(planting)
    planting.set_defaults(run=sensitivity.command)
    listing = commands.add_parser(
        "list", help="properties, value families, faults and contract rules"
    )
    listing.set_defaults(run=_list)
    measuring = commands.add_parser("benchmark", help="measure this harness's speed")
    benchmark.add_arguments(measuring)
    measuring.set_defaults(run=benchmark.command)
    return parser


def _replay(options: argparse.Namespace) -> int:
    if options.source == "-":
        text, folder = sys.stdin.read(), pathlib.Path()
    else:
        path = pathlib.Path(options.source)
        try:
            text, folder = path.read_text(encoding="utf-8"), path.parent
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
    request = replay.parse(text, folder)
    if request.target not in (None, options.target):
        print(f"reported for {request.target}, run on {options.target}")
    results = replay.run(request, options.target, options.mode, options.masked_rows)
    print("\n".join(replay.table(results)))
    return FAILS if any(result.failure for result in results) else HOLDS


def _list(options: argparse.Namespace) -> int:
    del options
    functions: Mapping[str, Mapping[str, object]] = {
        "properties": checks.PROPERTIES,
        "value families": values.FAMILIES,
        "bias families": values.BIAS_FAMILIES,
    }
    for title, named in functions.items():
        _print_section(title, {name: _first_sentence(each) for name, each in named.items()})
    _print_section("faults", {name: each.says for name, each in catalogue.FAULTS.items()})
    _print_section("contract rules", RULES)
    return HOLDS


def _print_section(title: str, lines: Mapping[str, str]) -> None:
    print(f"{title}:")
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"  {name:{width}}  {text}")


def _first_sentence(documented: object) -> str:
    text = " ".join((inspect.getdoc(documented) or "").split())
    return text.split(". ")[0].removesuffix(".")
