"""Pictures as inline SVG: ratios against the bound, pairs of features, a mask, bars."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from properties.reports.markup import Markup, counted, element, join, number

# Histograms reach over these decades; a bin at either end takes what lies outside.
_LOWEST, _HIGHEST = -6, 2
_BINS = 4 * (_HIGHEST - _LOWEST)


def _svg(width: float, height: float, label: str, *parts: Markup, class_: str = "") -> Markup:
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_label=label,
        class_=class_ or None,
    )


def _rect(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    return element(
        "rect",
        element("title", title) if title else None,
        x=f"{x:g}",
        y=f"{y:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        class_=class_,
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor)


def _path(d: str, class_: str) -> Markup:
    return element("path", d=d, class_=class_) if d else Markup()


def histogram(output: str, by_dtype: Mapping[str, Sequence[Sequence[Any]]]) -> Markup:
    """How near to the bound each case came, one strip for each dtype, on a logarithmic axis.

    `by_dtype` has the bins as [upper end, cases]. Heights are square roots, to keep single cases
    in sight.
    """
    width, strip, left, step = 330, 52, 4, 9.3
    parts: list[Markup] = []
    at_bound = left + step * (1 + 4 * -_LOWEST)
    for row, (dtype, bins) in enumerate(by_dtype.items()):
        base = row * (strip + 8) + strip + 12
        heights = _binned(bins)
        most = max(heights.values(), default=1)
        for place, cases in heights.items():
            height = max(strip * math.sqrt(cases / most) * 0.85, 2)
            class_ = "beyond" if place > 4 * -_LOWEST else ("first", "second")[row % 2]
            title = f"{dtype}: {cases} cases, {_range(place)}"
            x = left + step * place
            parts.append(_rect(x, base - height, step - 1, height, class_, title))
        parts.append(_path(f"M{left} {base + 0.5}H{width - 4}", "axis"))
        parts.append(_label(width - 4, base - strip + 10, dtype, "end"))
    bottom = len(by_dtype) * (strip + 8) + 4
    parts.append(_path(f"M{at_bound - 0.5:g} 6V{bottom}", "bound"))
    parts.append(_label(at_bound + 4, 14, "bound"))
    parts.append(_label(0, bottom + 14, "≤10⁻⁶"))
    for exponent, text in ((-4, "10⁻⁴"), (-2, "0.01"), (0, "1"), (2, "100")):
        x = left + step * (1 + 4 * (exponent - _LOWEST))
        parts.append(_label(x, bottom + 14, text, "middle"))
    return _svg(width, bottom + 20, f"error over bound of {output}", *parts)


def _binned(bins: Sequence[Sequence[Any]]) -> dict[int, int]:
    """Cases by place: 0 for the least ratios, then those of `_BINS`, then the greatest."""
    found: Counter[int] = Counter()
    for upper, cases in bins:
        ratio = float(upper)
        place = 0
        if ratio == math.inf:
            place = _BINS + 1
        elif ratio > 0:
            place = min(max(round(4 * (math.log10(ratio) - _LOWEST)), 0), _BINS + 1)
        found[place] += cases
    return dict(sorted(found.items()))


def _range(place: int) -> str:
    if place == 0:
        return "ratio at most 10⁻⁶"
    lower = 10 ** ((place - 1) / 4 + _LOWEST)
    if place > _BINS:
        return f"ratio above {number(lower)}"
    return f"ratio {number(lower, 2)} to {number(lower * 10**0.25, 2)}"


def bars(seconds: Mapping[str, float]) -> Markup:
    """Seconds by name, longest bar for the most."""
    most = max(seconds.values(), default=0.0) or 1.0
    parts: list[Markup] = []
    for row, (name, value) in enumerate(seconds.items()):
        y = row * 22
        parts.append(_label(0, y + 14, name))
        parts.append(_rect(70, y + 3, 190, 14, "track"))
        parts.append(_rect(70, y + 3, max(190 * value / most, 1), 14, "first"))
        parts.append(_label(266, y + 14, f"{value:,.1f} s"))
    return _svg(330, 22 * len(seconds), "seconds by stage", *parts)


def bar(share: float) -> Markup:
    """One bar, full at 1."""
    parts = (_rect(0, 3, 150, 12, "track"), _rect(0, 3, 150 * share, 12, "first"))
    return _svg(150, 18, f"{share:.0%}", *parts)


def pairs(atoms: Sequence[Sequence[str]], rows: Sequence[str]) -> Markup:
    """Which pairs of feature values were visited: a triangle, its holes in another colour.

    `rows` has for each atom a character for every atom before it, as `Coverage.to_map`.
    """
    size, gap, margin = 6, 3, 130
    places, at, before = [], 0.0, None
    for feature, _ in atoms:
        at += gap if before not in (None, feature) else 0
        places.append(at)
        at += size
        before = feature
    shapes = {"1": "", "0": "", ".": ""}
    holes: list[Markup] = []
    for number_, row in enumerate(rows):
        y = places[number_]
        start = 0
        for kind, run in groupby(row):
            end = start + len(list(run))
            for other in range(start, end):
                shapes[kind] += (
                    f"M{margin + places[other]:g} {y:g}h{size - 1}v{size - 1}h-{size - 1}z"
                )
                if kind == "0" and len(holes) < 500:
                    title = f"{_atom(atoms[number_])} with {_atom(atoms[other])}"
                    spot = (margin + places[other], y, size - 1, size - 1)
                    holes.append(_rect(*spot, "hole", title))
            start = end
    parts = [_path(shapes["."], "illegal"), _path(shapes["1"], "visited")]
    parts += [_path(shapes["0"], "hole"), *holes]
    for feature, group in groupby(range(len(atoms)), key=lambda place: atoms[place][0]):
        members = list(group)
        middle = (places[members[0]] + places[members[-1]] + size) / 2
        parts.append(_label(margin - 6, middle + 4, feature, "end"))
        # On the diagonal again, where the columns of a feature begin.
        parts.append(_label(margin + places[members[-1]] + size + 6, middle + 4, feature))
    return _svg(margin + at + 110, at + 4, "pairs of feature values", *parts, class_="large")


def _atom(atom: Sequence[str]) -> str:
    return f"{atom[0]} = {atom[1]}"


def mask(drawing: Mapping[str, Any]) -> Markup:
    """Which keys the queries of one head see, and where the result is wrong: see `grid.drawing`."""
    rows: list[str] = drawing["visible"]
    height, width = len(rows), max(map(len, rows))
    size = max(min(320 / max(width, height), 26), 4.5)
    line = 1 if size > 6 else 0
    left, top = 20, 16
    shapes = {"#": "", "+": "", ".": ""}
    for y, row in enumerate(rows):
        for x, kind in enumerate(row):
            side = f"{size - line:g}"
            shapes[kind] += f"M{left + x * size:g} {top + y * size:g}h{side}v{side}h-{side}z"
    parts = [_path(shapes[kind], name) for kind, name in zip("#+.", _MASK_CLASSES, strict=True)]
    across, down = width * size - line, height * size - line
    for at in drawing.get("wrong", ()):
        if drawing["axis"] == "query":
            spot = (left, top + at * size, across, size - line)
        elif drawing["axis"] == "key":
            spot = (left + at * size, top, size - line, down)
        else:
            spot = (left + at[1] * size, top + at[0] * size, size - line, size - line)
        parts.append(_rect(*spot, "wrong"))
    if drawing.get("blocks"):
        of_queries, of_keys = (block * size / drawing["cell"] for block in drawing["blocks"])
        lines = [f"M{left} {top + y:g}h{across:g}" for y in _multiples(of_queries, down)]
        lines += [f"M{left + x:g} {top}v{down:g}" for x in _multiples(of_keys, across)]
        parts.append(_path("".join(lines), "block"))
    parts.append(_label(left, 11, f"{counted(drawing['kv_len'], 'key', 'keys')} →"))
    turned = Markup(f'<g transform="translate(11 {top}) rotate(90)">')
    parts.append(
        join(
            turned,
            _label(0, 0, f"{counted(drawing['q_len'], 'query', 'queries')} →"),
            Markup("</g>"),
        )
    )
    total = max(left + across, 90), max(top + down, 90)
    return _svg(total[0] + 2, total[1] + 2, "mask and wrong elements", *parts)


_MASK_CLASSES = ("seen", "some", "unseen")


def _multiples(step: float, end: float) -> list[float]:
    return [step * times for times in range(1, math.ceil(end / step))]
