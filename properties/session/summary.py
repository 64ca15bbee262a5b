"""The end of a run: in ten seconds' reading for a person, as data for a program."""

from typing import Any

from properties import environment
from properties.cases.case import DTYPES
from properties.claims.statistics import KINDS
from properties.judging.verdict import json_number
from properties.session.tally import PropertyTally, Ratios, Tally

OUTPUTS = ("o", "l", "m", "lse", "dq", "dk", "dv", "dab")
STAGES = ("trace", "lower", "compile", "run", "oracle")

# Reasons beyond these would hide the figures; they are in the JSON report.
_REASONS_SHOWN = 6


def lines(tally: Tally, *, triples: bool = False) -> list[str]:
    """What was run, how close to the bounds it came, what was left out, where the time went.

    `triples`: say how many triples of features were visited too; counting them takes seconds.
    """
    counts = tally.counts
    modes = ", ".join(f"{count} in {mode}" for mode, count in tally.modes.most_common())
    text = [
        f"{_cases(tally)} cases ({modes}), {len(tally.configurations)} configurations, "
        f"{_elements(tally):,} elements compared, "
        f"{len(tally.coverage.visited)} of {len(tally.coverage.legal)} pairs of features",
        "  ".join(
            f"{group} {each.cases} cases {each.seconds:.0f} s"
            for group, each in _by_group(tally).items()
        ),
        *([f"{tally.triples.visited} of {tally.triples.legal} triples"] if triples else []),
        *_ratio_table(tally),
        *_statistics_table(tally),
    ]
    untested = counts["untested_rows"]
    share = untested / max(counts["rows"], 1)
    text.append(f"untested rows   {untested} of {counts['rows']} ({share:.2%}; limit 2%)")
    refused = [(why, count) for why, count in tally.refused.most_common()]
    text += _reasons(f"refused         {sum(tally.refused.values())}", refused)
    skipped = [(f"{what}: {why}", count) for (what, why), count in tally.skipped.most_common()]
    text += _reasons(f"skipped         {sum(tally.skipped.values())}", skipped)
    for group, each in _by_group(tally).items():
        if each.unvisited:
            text.append(f"out of budget   {each.unvisited} cases of {group} not visited")
    for worker in tally.lost_workers:
        text.append(f"lost            worker {worker} crashed: none of its cases is counted here")
    seconds = tally.stage_seconds()
    text.append("seconds         " + "  ".join(f"{s} {seconds.get(s, 0.0):.1f}" for s in STAGES))
    return text


def _by_group(tally: Tally) -> dict[str, PropertyTally]:
    """The properties, those of one family ("family.name") as one."""
    groups: dict[str, PropertyTally] = {}
    for name, each in sorted(tally.properties.items()):
        groups.setdefault(name.split(".")[0], PropertyTally()).add(each)
    return groups


def report(
    tally: Tally,
    *,
    target: str,
    masked_rows: str,
    mode: str,
    profile: str,
    passed: bool,
    seconds: float,
    cpu_seconds: float,
) -> dict[str, Any]:
    """The run as JSON-ready data, schema 1 of the run report."""
    stages = tally.stage_seconds()
    skipped = [
        {"what": what, "why": why, "cases": count}
        for (what, why), count in tally.skipped.most_common()
    ]
    skipped += [
        {"what": name, "why": "out of budget", "cases": each.unvisited}
        for name, each in tally.properties.items()
        if each.unvisited
    ]
    skipped += [
        {"what": f"worker {worker}", "why": "crashed, none of its cases is counted"}
        for worker in tally.lost_workers
    ]
    return {
        "schema": 1,
        "target": target,
        "mode": mode,
        "masked_rows": masked_rows,
        "profile": profile,
        "verdict": "pass" if passed else "fail",
        "cases": _cases(tally),
        "configurations": len(tally.configurations),
        "elements": _elements(tally),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "outputs": {
            name: _ratios_record(_of_output(tally, name, *DTYPES))
            | {
                dtype: _ratios_record(tally.ratios[name, dtype], histogram=True)
                for dtype in DTYPES
                if (name, dtype) in tally.ratios
            }
            for name in OUTPUTS
            if any((name, dtype) in tally.ratios for dtype in DTYPES)
        },
        "pairs": {
            "visited": len(tally.coverage.visited),
            "legal": len(tally.coverage.legal),
            "map": tally.coverage.to_map(),
        },
        "triples": {"visited": tally.triples.visited, "legal": tally.triples.legal},
        "stages": {name: stages.get(name, 0.0) for name in STAGES},
        "properties": {
            name: {
                "cases": each.cases,
                "seconds": each.seconds,
                "elements": each.elements,
                "worst_ratio": json_number(each.worst_ratio),
                "verdict": "fail" if each.failures else "pass",
            }
            for name, each in sorted(tally.properties.items())
        },
        "modes": dict(tally.modes),
        "refused": sum(tally.refused.values()),
        "refusals": dict(tally.refused.most_common()),
        "rows": tally.counts["rows"],
        "untested_rows": tally.counts["untested_rows"],
        "skipped": skipped,
        "failures": tally.failures,
        "first_failure": tally.first_failure,
        "environment": environment.versions(),
    }


def _ratio_table(tally: Tally) -> list[str]:
    present = [name for name in OUTPUTS if any((name, dtype) in tally.ratios for dtype in DTYPES)]
    if not present:
        return []
    table = ["error / bound   " + "".join(f"{name:>9}" for name in present)]
    for dtype in DTYPES:
        if not any((name, dtype) in tally.ratios for name in present):
            continue
        for statistic in ("worst", "median"):
            row = f"{dtype:9}{statistic:7}"
            for name in present:
                ratios = tally.ratios.get((name, dtype))
                row += f"{getattr(ratios, statistic):9.2g}" if ratios else " " * 8 + "-"
            table.append(row)
    return table


def _statistics_table(tally: Tally) -> list[str]:
    """Each statistic over its limit, in the output where it came closest."""
    worst: dict[tuple[str, str], float] = {}
    for (output, dtype), ratios in tally.ratios.items():
        _, _, kind = output.partition(" ")
        worst[kind, dtype] = max(worst.get((kind, dtype), 0.0), ratios.worst)
    present = [dtype for dtype in DTYPES if any((kind, dtype) in worst for kind in KINDS)]
    table = ["statistic/limit " + "".join(f"{kind:>9}" for kind in KINDS)]
    for dtype in present:
        found = [worst.get((kind, dtype)) for kind in KINDS]
        shown = ("-" if ratio is None else f"{ratio:.2g}" for ratio in found)
        table.append(f"{dtype:9}{'worst':7}" + "".join(f"{ratio:>9}" for ratio in shown))
    return table if present else []


def _reasons(head: str, reasons: list[tuple[str, int]]) -> list[str]:
    shown = [f"{count:8} {why}" for why, count in reasons[:_REASONS_SHOWN]]
    if len(reasons) > _REASONS_SHOWN:
        shown.append(f"{'':8} and {len(reasons) - _REASONS_SHOWN} more reasons")
    return [head, *shown] if reasons else []


def _of_output(tally: Tally, name: str, *dtypes: str) -> Ratios:
    total = Ratios()
    for dtype in dtypes:
        total.add(tally.ratios.get((name, dtype), Ratios()))
    return total


def _ratios_record(ratios: Ratios, *, histogram: bool = False) -> dict[str, Any]:
    bins = [[json_number(ratio), cases] for ratio, cases in ratios.histogram]
    return {
        "worst_ratio": json_number(ratios.worst),
        "median_ratio": json_number(ratios.median),
        "elements": ratios.elements,
    } | ({"histogram": bins} if histogram else {})


def _cases(tally: Tally) -> int:
    return sum(each.cases for each in tally.properties.values())


def _elements(tally: Tally) -> int:
    return sum(ratios.elements for ratios in tally.ratios.values())
