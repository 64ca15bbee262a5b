"""One case again: a bare case, or a failure report, which says what failed and how it was run."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from properties import engines
from properties.cases import records
from properties.cases.case import SCHEMA, Case
from properties.claims import checks
from properties.judging.result import CHIP, MODES, Result, engines_for
from properties.judging.targets import MaskedRows, Target
from properties.shrinking.signature import Signature

_OPTIONAL = ("target", "property", "mode", "masked_rows", "verdict", "environment")


@dataclass(frozen=True)
class Request:
    """A case to run, with what a report says of how it was run; None where it is a bare case."""

    case: Case
    property: str | None = None
    target: str | None = None
    mode: str | None = None
    masked_rows: MaskedRows | None = None
    signature: Signature | None = None


def parse(text: str, folder: pathlib.Path) -> Request:
    """Reads a case or a report. `folder` holds the tensors that a case may name.

    Raises ValueError (of one line) for what is neither; imports and runs nothing.
    """
    record = records.parsed(text)
    # Before its fields, of which another schema has others.
    schema = record.get("schema") if isinstance(record, Mapping) else None
    if schema is not None and records.integer(schema, "schema", least=0) != SCHEMA:
        raise ValueError(f"schema: got {records.shown(schema)}; this program reads schema {SCHEMA}")
    if not isinstance(record, Mapping) or "case" not in record:
        return Request(Case.from_json(record, folder))
    return _report(record, folder)


def run(
    request: Request, target: str, mode: str | None, masked_rows: MaskedRows | None
) -> list[Result]:
    """Runs the request on `target`; `mode` and `masked_rows` override what it says.

    A report runs under its property, a bare case under refusals if it breaks a rule, else under
    outputs and gradients. Takes a chip for mode tpu. Raises ValueError for a target or a mode that
    cannot be used.
    """
    mode = mode or request.mode or "auto"
    if mode == CHIP and not engines.tpu_attached():
        raise ValueError("mode tpu: no TPU is attached to this machine; give another --mode")
    if engines_for(mode) == (CHIP,):
        engines.claim_chip()
    loaded = Target.load(target, masked_rows or request.masked_rows)
    return [
        checks.PROPERTIES[name](request.case, loaded, mode)
        for name in properties_of(request.property, request.case)
    ]


def properties_of(reported: str | None, case: Case) -> tuple[str, ...]:
    """What to run a case under: the property it was reported for, or those a bare case has."""
    if reported is not None:
        return (reported,)
    return ("refusals",) if case.breaks is not None else ("outputs", "gradients")


def named(target: str) -> str:
    """What a report says of its target, which may be any text, on one line."""
    return target if target.isprintable() else records.shown(target)


def table(results: list[Result]) -> list[str]:
    """A line for each verdict: property, engine, output, pass or fail, and its worst element."""
    head = f"{'property':10} {'mode':13} {'output':7} {'':5} {'ratio':>9}"
    lines = [f"{head} {'got':>15} {'expected':>15} {'bound':>10}  index"]
    for result in results:
        head = f"{result.name:10} {result.mode:13}"
        for why in (result.skipped, result.refused):
            if why:
                lines.append(f"{head} {'':7} {'skipped' if result.skipped else 'refused'}: {why}")
        for each in result.verdicts:
            line = f"{head} {each.output:7} {'pass' if each.passed else 'FAIL':5}"
            if each.index is not None:
                line += (
                    f" {each.ratio:9.3g} {each.got:15.8g} {each.expected:15.8g} {each.bound:10.3g}"
                    f"  {list(each.index)}"
                )
            lines.append(f"{line}  {each.message}".rstrip())
    return lines


def _report(record: Mapping[str, Any], folder: pathlib.Path) -> Request:
    records.record(record, "", required=("schema", "case"), optional=_OPTIONAL)
    records.integer(record["schema"], "schema", least=SCHEMA)
    choices = {
        "property": tuple(checks.PROPERTIES),
        "mode": MODES,
        "masked_rows": get_args(MaskedRows),
    }
    for name, known in choices.items():
        if record.get(name) is not None:
            records.choice(record[name], name, known)
    target = record.get("target")
    if target is not None and not isinstance(target, str):
        raise ValueError(f"target: got {records.shown(target)}; expected MODULE:NAME")
    return Request(
        Case.from_json(record["case"], folder),
        record.get("property"),
        target,
        record.get("mode"),
        cast(MaskedRows | None, record.get("masked_rows")),
        _signature(record),
    )


def _signature(record: Mapping[str, Any]) -> Signature | None:
    """How the case failed, by the report's verdict."""
    verdict = record.get("verdict")
    if verdict is None:
        return None
    if not isinstance(verdict, Mapping):
        raise ValueError(f"verdict: got {records.shown(verdict)}; expected an object")
    for name in ("output", "message"):
        value = verdict.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"verdict.{name}: got {records.shown(value)}; expected a string")
    return Signature.of(record)
