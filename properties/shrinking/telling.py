"""A reduction in words: a line for each step, then what the case needs and what it does not."""

from collections.abc import Iterator
from typing import Any

from properties.cases.case import Case
from properties.shrinking.reducing import Reduced, Step

_OUTCOMES = {
    "fails": "fails in the same way",
    "fails otherwise": "fails, but in another way",
    "holds": "holds",
    "does not apply": "is no case of this property",
    "not tried": "was not tried",
}


def step(taken: Step) -> str:
    """One improvement: runs and seconds so far, the case, and what made it simpler."""
    return f"{taken.runs:5} {taken.seconds:6.1f} s  {shape(taken.case):30} {taken.what}"


def shape(case: Case) -> str:
    """Dimensions and features of a case in a few words."""
    words = [
        f"{case.batch}x{case.heads}x{case.q_len}x{case.kv_len}x{case.head_dim}",
        *(["bfloat16"] if case.dtype == "bfloat16" else []),
        *(["causal"] if case.causal else []),
        *(["bias"] if case.bias else []),
        *(["segments"] if case.segments else []),
        *(["blocks"] if case.block_sizes else []),
        *(["tensors"] if case.tensors else []),
    ]
    return " ".join(words)


def explanation(reduced: Reduced) -> list[str]:
    """What the reported case had and the minimal one has not, then one line a change to that."""
    assert reduced.case is not None
    lines = []
    gone = [
        f"{name} {before}".rstrip() for name, before in _differences(reduced.reported, reduced.case)
    ]
    if gone:
        lines.append(f"not needed: {', '.join(gone)}")
    essential = _features(reduced.explanation, "holds", "does not apply")
    lines.append(f"essential: {', '.join(essential) or 'nothing that was changed'}")
    for change in reduced.explanation:
        name = f"{change['feature']}: {change['from']} -> {change['to']}"
        lines.append(f"  {name:40} {_OUTCOMES[change['outcome']]}")
    return lines


def _features(changes: list[dict[str, str]], *outcomes: str) -> list[str]:
    found = [each for each in changes if each["outcome"] in outcomes]
    return list(dict.fromkeys(f"{each['feature']} {each['from']}" for each in found))


def _differences(reported: Case, minimal: Case) -> Iterator[tuple[str, Any]]:
    """Features of the reported case that the minimal one does without, with what they were."""
    for name in ("batch", "heads", "q_len", "kv_len", "head_dim", "dtype", "values", "seed"):
        if getattr(reported, name) != getattr(minimal, name):
            yield name, getattr(reported, name)
    if reported.sm_scale != minimal.sm_scale:
        yield "scale", f"{reported.sm_scale:.6g}"
    for name in ("causal", "bias", "segments", "block_sizes", "tensors"):
        if getattr(reported, name) and not getattr(minimal, name):
            yield name.replace("_", " "), ""
