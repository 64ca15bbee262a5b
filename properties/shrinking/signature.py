"""What makes two failures the same one: the property, the output, and what kind of wrong it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROCESS = "process"
"""The output that the verdict is about where a case ended its process, or never ended."""

_EXCEPTION = re.compile(r"\braise[sd] (\w+)")
_NUMBER = re.compile(r"\d[\d.e+-]*")


@dataclass(frozen=True)
class Signature:
    """Cases with the same signature are taken to show the same fault.

    `kind` is empty for an output with wrong numbers, whatever they are: a smaller case may give
    NaN where a larger one is a little off. It is an exception's type where one was raised, else
    what the verdict says, without its numbers.
    """

    property: str
    output: str
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.property}: {self.output}{self.kind and f' ({self.kind})'}"

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> "Signature | None":
        """The signature of a failure report, None where it does not say what failed."""
        verdict = report.get("verdict") or {}
        name, output = report.get("property"), verdict.get("output")
        message = verdict.get("message") or ""
        if not isinstance(name, str) or not isinstance(output, str) or not message:
            return None
        kind = _kind(message, about_numbers=verdict.get("index") is not None)
        return cls(name, _plain(output), _plain(kind))


def _plain(text: str) -> str:
    """The text without what a terminal would not print as it is."""
    return "".join(each for each in text if each.isprintable())


def _kind(message: str, *, about_numbers: bool) -> str:
    if about_numbers:
        return ""
    if found := _EXCEPTION.search(message):
        return found[1]
    return _NUMBER.sub("N", " ".join(message.split()))[:100]
