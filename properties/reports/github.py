"""What GitHub shows of a run: annotations beside the job's log, and the job's summary.

Both follow GitHub's "Workflow commands for GitHub Actions": a command is a line, in which what
would end the line, or a property, is percent-encoded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from properties.reports import alike
from properties.reports.markup import Markup, number, text
from properties.session import failure as failures_as_text
from properties.session.failure import visible

MOST = 10
"""GitHub shows no more annotations of a step."""


def annotations(failures: Sequence[alike.Failure], others: Sequence[str] = ()) -> list[str]:
    """A line of the log for each kind of failure, then for each other reason to fail."""
    titled = [
        (_title(failures[first]), failures_as_text.text(failures[first]))
        for first, *_ in alike.groups(failures)
    ]
    titled += [("attention properties", why) for why in others]
    return [f"::error title={_property(title)}::{_data(words)}" for title, words in titled[:MOST]]


def _title(failure: alike.Failure) -> str:
    verdict = failure["verdict"]
    return f"{failure['property']}: {verdict['output']} {verdict['message']}"


def _data(words: str) -> str:
    return visible(words).replace("%", "%25").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def summary(data: Mapping[str, Any]) -> str:
    """The run in Markdown, from its data: verdict, figures, ratios, and every kind of failure."""
    visited, legal = data["pairs"]["visited"], data["pairs"]["legal"]
    untested = data["untested_rows"] / max(data["rows"], 1)
    lines = [
        f"## {'✅ PASS' if data['verdict'] == 'pass' else '❌ FAIL'} {_inline(data['target'])}",
        "",
        *(f"- {_inline(reason)}" for reason in data.get("reasons", ())),
        "",
        f"{data['cases']:,} cases, {data['configurations']:,} configurations, "
        f"{data['elements']:,} elements compared, {visited:,} of {legal:,} pairs of features, "
        f"{untested:.2%} of rows untested, {data['refused']:,} refused, {data['seconds']:,.0f} s",
        "",
        *_ratios(data["outputs"]),
        *_kinds(data["failures"]),
    ]
    return "\n".join(lines) + "\n"


def issue(data: Mapping[str, Any]) -> str:
    """The text of an issue on what failed in a run: the smallest cases, how to see them again, and
    what they were seen with."""
    versions = [f"{name} {version}" for name, version in data["environment"].items() if version]
    lines = [
        f"{_inline(data['target'])} does not hold what it claims: each case below is the smallest "
        "found that fails in its way, with the command that runs it again.",
        *_kinds(data["failures"]),
        "",
        f"Seen with {_inline(', '.join(versions))}, mode {_inline(data['mode'])}.",
    ]
    return "\n".join(lines) + "\n"


def _kinds(failures: Sequence[alike.Failure]) -> list[str]:
    """The first of each kind of failure, under its property."""
    groups = alike.groups(failures)
    lines: list[str] = []
    for first, *others in groups[:MOST]:
        failure = failures[first]
        more = f" (and {len(others)} alike)" if others else ""
        # Within <pre> only the escaped text counts, whatever it would mean in Markdown.
        lines += ["", f"### {_inline(failure['property'])}{more}", ""]
        lines += [f"<pre>{text(failures_as_text.text(failure))}</pre>"]
    if len(groups) > MOST:
        lines += ["", f"and {len(groups) - MOST} more kinds of failures"]
    return lines


def _ratios(outputs: Mapping[str, Any]) -> list[str]:
    if not outputs:
        return []
    rows = [
        f"| {_inline(name)} | {number(each['worst_ratio'])} | {number(each['median_ratio'])} | "
        f"{each['elements']:,} |"
        for name, each in outputs.items()
    ]
    head = ["| error / bound | worst | median | elements |", "|---|---:|---:|---:|"]
    return head + rows


def _inline(words: object) -> Markup:
    """Text within a line of Markdown: what Markdown or HTML would take for markup is escaped."""
    escaped = str(text(str(words).replace("\n", " ")))
    return Markup("".join(f"\\{c}" if c in "\\`*_[]|~" else c for c in escaped))
