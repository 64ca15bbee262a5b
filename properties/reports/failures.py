"""The part of the page about failures: what is wrong, where, why, and how to see it again."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from properties.reports import alike, pictures
from properties.reports.markup import Content, Markup, counted, element, join, number, table
from properties.session import failure as failures_as_text

MOST = 25
"""Kinds of failures shown in full."""

_OUTCOMES = {
    "fails": "fails in the same way",
    "fails otherwise": "fails, but in another way",
    "refused": "is refused by the target",
    "holds": "holds",
    "does not apply": "is no case of this property",
    "not tried": "was not tried: out of time",
}


def section(failures: Sequence[alike.Failure], explanations: Sequence[Mapping[str, Any]]) -> Markup:
    """Failures, alike ones as one, each with what is known about it."""
    known = {each["failure"]: each for each in explanations}
    groups = alike.groups(failures)
    cards = [
        _card(failures[first], len(others), known.get(first, {}))
        for first, *others in groups[:MOST]
    ]
    more = len(groups) - MOST
    left_out = element("p", f"and {more} more kinds, in the data of the run") if more > 0 else None
    kinds = f", of {counted(len(groups), 'kind', 'kinds')}" if len(groups) < len(failures) else ""
    return join(element("h2", f"Failures: {len(failures)}{kinds}"), *cards, left_out)


def _card(failure: alike.Failure, others: int, known: Mapping[str, Any]) -> Markup:
    verdict = failure["verdict"]
    also = f"{counted(others, 'failure', 'failures')} more of this kind." if others else None
    return element(
        "article",
        element("h3", f"{failure['property']}: {verdict['output']}"),
        element("p", element("b", verdict["message"], class_="fail")),
        _worst(verdict),
        element("p", also, class_="soft small") if also else None,
        element("div", _drawn(known), _explained(known), class_="sides"),
        element("h3", "Smallest case"),
        _facts(failure["case"]),
        element("pre", json.dumps(failure["case"])),
        element("h3", "See it again"),
        element("pre", failures_as_text.replay_command(failure)),
        element(
            "p",
            f"target {failure['target']}, mode {failure['mode']}, "
            f"masked rows {failure['masked_rows']}",
            class_="soft small",
        ),
        class_="card failure",
    )


def _worst(verdict: Mapping[str, Any]) -> Markup | None:
    if verdict["index"] is None:
        return None
    facts = {
        "worst element": f"{verdict['output']}{verdict['index']}",
        "got": number(verdict["got"], 9),
        "expected": number(verdict["expected"], 9),
        "bound": number(verdict["bound"]),
        "error / bound": number(verdict["ratio"]),
    }
    pairs = [element("div", element("dt", name), element("dd", its)) for name, its in facts.items()]
    return element("dl", *pairs)


def _drawn(known: Mapping[str, Any]) -> Markup:
    if "drawing" not in known:
        why = known.get("trouble", "it was not run again")
        return element("p", f"No drawing of the mask: {why}.", class_="soft small")
    drawing = known["drawing"]
    cell, blocks = drawing["cell"], drawing["blocks"]
    notes = [f"batch row {drawing['batch']}, head {drawing['head']}"]
    if drawing["axis"] is None:
        notes.append("the verdict is about the whole call")
    elif drawing["count"] is None:
        notes.append(f"of {drawing['output']} only the worst element is marked")
    else:
        notes.append(f"{drawing['count']} of {drawing['elements']} elements of {drawing['output']}")
        notes[-1] += " are wrong"
        if len(drawing["heads"]) > 1:
            notes.append(f"{len(drawing['heads'])} heads have wrong elements")
    if cell > 1:
        notes.append(f"a cell is {cell} × {cell} positions")
    if blocks:
        notes.append(f"dashed: blocks of {blocks[0]} queries, {blocks[1]} keys")
    marks = {"query": "wrong query", "key": "wrong key", "pair": "wrong"}
    return element(
        "div",
        element("h3", "Mask" if drawing["axis"] is None else "Mask, and where it is wrong"),
        pictures.mask(drawing),
        element(
            "p",
            *(_key("seen", "seen"), _key("unseen", "hidden")),
            _key("wrong", marks[drawing["axis"]]) if drawing["axis"] else None,
            class_="small",
        ),
        element("p", "; ".join(notes) + ".", class_="soft small"),
    )


def _key(class_: str, label: str) -> Markup:
    return join(element("span", class_=f"key {class_}"), label)


def _explained(known: Mapping[str, Any]) -> Markup | None:
    if "essential" not in known:
        if "drawing" not in known:
            return None
        why = known.get("trouble", "there was no time to find out")
        return element("p", f"What is essential is not known: {why}.", class_="soft small")
    changes = known["essential"]
    essential = _features(changes, "holds", "refused")
    rows: list[list[Content]] = []
    for change in changes:
        fails = change["outcome"] == "fails"
        outcome = element("b", _OUTCOMES[change["outcome"]], class_="fail" if fails else None)
        rows.append([f"{change['feature']}: {change['from']} → {change['to']}", outcome])
    kept = [name for name in _features(changes, "fails") if name not in essential]
    return element(
        "div",
        element("h3", "What is essential"),
        element(
            "p", "It needs: ", element("b", ", ".join(essential) or "nothing that was changed")
        ),
        element("p", "It does not need: ", ", ".join(kept) or "none of what was changed"),
        table(["one thing changed", "the case then"], rows),
    )


def _features(changes: Sequence[Mapping[str, str]], *outcomes: str) -> list[str]:
    found = [each for each in changes if each["outcome"] in outcomes]
    names = (f"{each['feature']} {each['from']}".removesuffix(" yes") for each in found)
    return list(dict.fromkeys(names))


def _facts(case: Mapping[str, Any]) -> Markup:
    """The case in a line for a person."""
    facts = [
        f"batch {case['batch']}, heads {case['heads']}",
        counted(case["q_len"], "query", "queries"),
        counted(case["kv_len"], "key", "keys"),
        f"head_dim {case['head_dim']}, {case['dtype']}",
        "causal" if case["causal"] else "not causal",
        f"scale {number(case['sm_scale'], 6)}",
    ]
    if case.get("bias"):
        facts.append(f"{case['bias']['dtype']} bias ({case['bias']['family']})")
    if case.get("segments"):
        facts.append("segments")
    if case.get("block_sizes"):
        facts.append("explicit blocks")
    if case.get("breaks"):
        facts.append(f"breaks the rule {case['breaks']}")
    facts.append(f"values {case['values']}, seed {case['seed']}")
    return element("p", ", ".join(facts))
