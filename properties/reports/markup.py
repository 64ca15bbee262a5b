"""HTML as strings in which only what this package wrote itself is not escaped.

Messages come from the code under test and may hold anything: tags, terminal codes, characters that
turn the direction of writing. Text becomes `Markup` through `text`, and through nothing else.
"""

import html

from properties.session.failure import visible


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


Content = Markup | str | None


def text(value: object) -> Markup:
    """A value as text in HTML, or in the value of an attribute."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(value)))


def join(*parts: Content) -> Markup:
    """Parts one after the other; strings become text, None is left out."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(tag: str, *parts: Content, **attributes: object) -> Markup:
    """An element. Attributes that are None are left out; `class_` is class, `a_b` is a-b."""
    head = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{head}>{join(*parts)}</{tag}>")


def table(head: list[Content], rows: list[list[Content]], class_: str | None = None) -> Markup:
    """A table that scrolls by itself where it is wider than the page."""
    titles = element("tr", *(element("th", each) for each in head))
    body = [element("tr", *(element("td", each) for each in row)) for row in rows]
    inner = element("table", element("thead", titles), element("tbody", *body), class_=class_)
    return element("div", inner, class_="scroll")


def counted(count: int, one: str, several: str) -> str:
    """A count and what it counts."""
    return f"{count:,} {one if count == 1 else several}"


def number(value: float | str | None, digits: int = 3) -> str:
    """A number for a person: thousands in groups, others in a few digits; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{float(value):.{digits}g}"
