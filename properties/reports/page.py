"""The run as one page for a person. A pure function of the run's data, schema 1 of the run report.

The page is a single file without scripts that asks no network: its policy forbids both, whatever a
message of the code under test may hold.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from properties.reports import failures, pictures
from properties.reports.markup import Content, Markup, element, join, number, table

Data = Mapping[str, Any]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# Holes listed in words, beside those in the picture.
_HOLES_LISTED = 40


def page(data: Data) -> str:
    """The HTML document. Parts of the data beyond the fixed keys of schema 1 may be missing; then
    the page does without what they would show."""
    title = f"{_verdict(data)[0]}: {data['target']}"
    head = (
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title),
        element("style", Markup(resources.files(__package__).joinpath("page.css").read_text())),
    )
    body = (
        _top(data),
        _tiles(data),
        failures.section(data["failures"], data.get("explanations", ()))
        if data["failures"]
        else None,
        _errors(data.get("errors", ())),
        _ratios(data["outputs"]),
        _map(data["pairs"]),
        _time(data),
        _left_out(data),
        _environment(data),
    )
    document = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"


def _verdict(data: Data) -> tuple[str, str]:
    """The verdict, and why it is that."""
    if data["verdict"] == "pass":
        late = sum(each["cases"] for each in data["skipped"] if each["why"] == "out of budget")
        unvisited = f" The budget left no time for {late:,} more." if late else ""
        return "PASS", f"Every property held on every case that was run.{unvisited}"
    broken = [name for name, each in data["properties"].items() if each["verdict"] == "fail"]
    reasons = [f"{_list(broken)} {'does' if len(broken) == 1 else 'do'} not hold"] if broken else []
    reasons += data.get("reasons", ())
    return "FAIL", "; ".join(reasons or ["the run did not end well"]) + "."


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _top(data: Data) -> Markup:
    verdict, why = _verdict(data)
    rows = f", masked rows {data['masked_rows']}" if "masked_rows" in data else ""
    how = f"mode {data['mode']}{rows}, profile {data['profile']}"
    return element(
        "header",
        element("h1", f"{verdict}  {data['target']}"),
        element("p", why),
        element("p", how, class_="soft small"),
        class_=f"verdict {data['verdict']}",
    )


def _tiles(data: Data) -> Markup:
    visited, legal = data["pairs"]["visited"], data["pairs"]["legal"]
    rows, untested = data["rows"], data["untested_rows"]
    worst = [float(each["worst_ratio"]) for each in data["outputs"].values()]
    facts = {
        "cases": number(data["cases"]),
        "configurations": number(data["configurations"]),
        "elements compared": number(data["elements"]),
        "worst error / bound": number(max(worst)) if worst else "-",
        f"of {legal:,} pairs of features": number(visited),
        f"of {rows:,} rows untested": f"{untested / max(rows, 1):.2%}",
        "refused": number(data["refused"]),
        f"seconds ({data['cpu_seconds']:,.0f} of CPU)": f"{data['seconds']:,.0f}",
    }
    tiles = [
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in facts.items()
    ]
    return element("div", *tiles, class_="tiles")


def _errors(errors: Sequence[Mapping[str, str]]) -> Markup | None:
    """Tests that failed by something else than a property that does not hold."""
    if not errors:
        return None
    cards = [
        element("div", element("h3", each["test"]), element("pre", each["message"]), class_="card")
        for each in errors
    ]
    return join(element("h2", f"Errors: {len(errors)}"), *cards)


def _ratios(outputs: Data) -> Markup | None:
    if not outputs:
        return None
    cards = []
    for name, output in outputs.items():
        by_dtype = {dtype: each for dtype, each in output.items() if isinstance(each, dict)}
        bins = {dtype: each["histogram"] for dtype, each in by_dtype.items() if "histogram" in each}
        worst = ", ".join(
            f"{dtype} {number(each['worst_ratio'])} (median {number(each['median_ratio'], 2)})"
            for dtype, each in (by_dtype or {"": output}).items()
        )
        cards.append(
            element(
                "div",
                element("h3", name),
                pictures.histogram(name, bins) if bins else None,
                element("p", f"worst {worst}", class_="small"),
                element("p", f"{output['elements']:,} elements", class_="soft small"),
                class_="card",
            )
        )
    return join(
        element("h2", "Error over bound"),
        element(
            "p",
            "Of each case the worst element of an output: its distance from the truth over the "
            "bound on what rounding can do. Beyond 1 it is wrong. Heights are square roots of "
            "counts.",
            class_="soft small",
        ),
        element("div", *cards, class_="charts"),
    )


def _map(pairs: Data) -> Markup | None:
    if "map" not in pairs:
        return None
    atoms, rows = pairs["map"]["atoms"], pairs["map"]["rows"]
    holes = [
        (atoms[other], atoms[place])
        for place, row in enumerate(rows)
        for other, kind in enumerate(row)
        if kind == "0"
    ]
    return join(
        element("h2", f"Case space: {pairs['visited']:,} of {pairs['legal']:,} pairs visited"),
        element(
            "p",
            *(element("span", class_="key visited"), "visited together"),
            *(element("span", class_="key hole"), f"not visited: {len(holes):,}"),
            *(element("span", class_="key illegal"), "no such case"),
            class_="small",
        ),
        element("div", pictures.pairs(atoms, rows), class_="scroll"),
        _holes(holes),
    )


def _holes(holes: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Markup | None:
    if not holes:
        return None
    shown = [
        element("li", f"{one} = {value} with {other} = {its}")
        for (one, value), (other, its) in holes[:_HOLES_LISTED]
    ]
    more = len(holes) - _HOLES_LISTED
    last = element("li", f"and {more:,} more") if more > 0 else None
    summary = element("summary", f"What was not visited ({len(holes):,})")
    return element("details", summary, element("ul", *shown, last, class_="small"))


def _time(data: Data) -> Markup:
    properties = data["properties"]
    most = max((each["seconds"] for each in properties.values()), default=0.0) or 1.0
    rows: list[list[Content]] = []
    for family, group in groupby(sorted(properties), key=lambda name: name.split(".")[0]):
        members = list(group)
        for name in members:
            each = properties[name]
            shown = f"· {name.removeprefix(family + '.')}" if name != family else name
            if name != family and name == members[0]:
                rows.append([family, None, None, None, None])
            rows.append(
                [
                    shown,
                    element("b", each["verdict"], class_=each["verdict"])
                    if each["cases"]
                    else element("span", "nothing run", class_="soft"),
                    number(each["cases"]),
                    f"{each['seconds']:,.1f}",
                    pictures.bar(each["seconds"] / most),
                ]
            )
    return join(
        element("h2", "Time"),
        pictures.bars(data["stages"]),
        element("p", "Seconds of all workers together.", class_="soft small"),
        element("h2", "Properties"),
        table(["property", "verdict", "cases", "seconds", None], rows, class_="wide"),
    )


def _left_out(data: Data) -> Markup:
    rows: list[list[Content]] = [
        ["refused", number(count), why] for why, count in data.get("refusals", {}).items()
    ]
    rows += [
        ["skipped", number(each.get("cases")), f"{each['what']}: {each['why']}"]
        for each in data["skipped"]
    ]
    if data["untested_rows"]:
        why = "so ill-conditioned that the bound says nothing; the limit is 2 % of all rows"
        rows.append(["untested rows", number(data["untested_rows"]), why])
    nothing = element("p", "Nothing.")
    body = table(["", "cases", "why"], rows) if rows else nothing
    return join(element("h2", "Refused, skipped, untested"), body)


def _environment(data: Data) -> Markup:
    facts = ", ".join(f"{name} {version or '-'}" for name, version in data["environment"].items())
    modes = ", ".join(f"{count:,} in {mode}" for mode, count in data.get("modes", {}).items())
    runs = element("p", f"Runs: {modes}.", class_="soft small") if modes else None
    return element("footer", runs, element("p", facts, class_="soft small"))
