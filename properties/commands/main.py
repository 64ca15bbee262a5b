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
from properties.commands import benchmark, fuzz, reading, replay, sensitivity, shrink
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
    _add_source(replaying)
    replaying.set_defaults(run=_replay)
    shrinking = commands.add_parser("shrink", help="reduce a failure to the smallest that fails so")
    _add_source(shrinking)
    shrinking.add_argument(
        "--out",
        metavar="DIR",
        type=pathlib.Path,
        default=pathlib.Path(),
        help="where the minimal case and its report are written (default: here)",
    )
    shrinking.set_defaults(run=shrink.command)
    fuzzing = commands.add_parser("fuzz", help="the nightly job: draw cases for hours, lose none")
    fuzz.add_arguments(fuzzing)
    fuzzing.set_defaults(run=fuzz.command)
    planting = commands.add_parser(
        "sensitivity", help="plant faults in the kernel: what finds them"
    )
    sensitivity.add_arguments(planting)
    planting.set_defaults(run=sensitivity.command)
    mutating = commands.add_parser(
        "mutants", help="every small change to the kernel: what the suite does not see"
    )
    _add_mutants(mutating)
    listing = commands.add_parser(
        "list", help="properties, value families, faults and contract rules"
    )
    listing.set_defaults(run=_list)
    measuring = commands.add_parser("benchmark", help="measure this harness's speed")
    benchmark.add_arguments(measuring)
    measuring.set_defaults(run=benchmark.command)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    """What a command is given to run, and how to run it."""
    parser.add_argument(
        "source",
        metavar="CASE_OR_REPORT",
        help="a file of JSON, an .npz of tensors, or - for JSON on standard input",
    )
    parser.add_argument(
        "--target", metavar="MODULE:NAME", default=KERNEL, help="what is run (default: %(default)s)"
    )
    parser.add_argument("--mode", choices=MODES, help="default: the report's")
    parser.add_argument("--masked-rows", choices=get_args(MaskedRows), help="default: the report's")


def _add_mutants(parser: argparse.ArgumentParser) -> None:
    """The command, if the optional tool that makes mutants is there; else one that says how."""
    try:
        from properties.commands import mutants
    except ModuleNotFoundError as error:
        # Anything else that is missing is a fault.
        if error.name is None or error.name.split(".")[0] not in ("cosmic_ray", "parso"):
            raise
        parser.set_defaults(run=_lacks_mutation)
    else:
        mutants.add_arguments(parser)
        parser.set_defaults(run=mutants.command)


def _lacks_mutation(options: argparse.Namespace) -> int:
    raise ValueError("mutants are made by cosmic-ray: pip install 'attention-properties[mutation]'")


def _replay(options: argparse.Namespace) -> int:
    request = reading.read(options.source)
    if request.target not in (None, options.target):
        print(f"reported for {replay.named(request.target)}, run on {options.target}")
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
    _print_section("faults", {name: str(each) for name, each in catalogue.FAULTS.items()})
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
