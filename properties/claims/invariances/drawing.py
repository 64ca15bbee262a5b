"""Strategies for the invariances: a case, then what each property needs beside it.

`parameters(name, case)` gives None where the case says nothing about the property. As everywhere,
each draw is an index into options, simplest first.
"""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from properties.cases.case import Case
from properties.claims.invariances.bounded import GET_DEFAULT
from properties.claims.invariances.exact import REPLACEMENTS, REPLACING_BIAS
from properties.drawing import space
from properties.drawing.space import Choose
from properties.judging.targets import Target

Parameters = dict[str, Any] | None

# Several tiles, a tail and less than a tile: more lengths would show nothing about an invariance
# that the outputs' own tests do not. Every invariance makes several calls.
_Q_LENGTHS = (2, 9, 24, 128, 129, 256)
_KV_LENGTHS = (1, 8, 128, 129, 256, 384)
_HEAD_DIMS = (8, 1, 64, 128)


@st.composite
def cases(draw: st.DrawFn, **restrictions: Any) -> Case:
    """A legal call; `restrictions` as in `strategies.cases`."""
    return space.draw_case(_chooser(draw), _space(**restrictions))


def _space(**restrictions: Any) -> space.Space:
    return space.Space(
        **restrictions, q_lengths=_Q_LENGTHS, kv_lengths=_KV_LENGTHS, head_dims=_HEAD_DIMS
    )


@st.composite
def parameters(draw: st.DrawFn, name: str, case: Case) -> Parameters:
    """What the property `name` needs beside the case, None where the case does not suit it."""
    return _PARAMETERS[name](_chooser(draw), case)


def simplest(name: str, case: Case) -> Parameters:
    """The simplest of what `parameters` draws."""
    return _PARAMETERS[name](lambda options: options[0], case)


def _chooser(draw: st.DrawFn) -> Choose:
    return lambda options: options[draw(st.integers(0, len(options) - 1))]


def _none(choose: Choose, case: Case) -> Parameters:
    return {}


def _of_gradients(choose: Choose, case: Case) -> Parameters:
    return {} if _backward(case) else None


def _backward(case: Case) -> bool:
    return case.block_sizes is None or case.block_sizes.backward


def _hidden_keys(choose: Choose, case: Case) -> Parameters:
    if not _hides(case):
        return None
    # The first row sees the fewest keys under causal order.
    rows = sorted({0, case.q_len // 2, case.q_len - 1})
    return {"row": choose(rows), "replacement": choose(REPLACEMENTS)}


def _unseen_keys(choose: Choose, case: Case) -> Parameters:
    beyond = case.causal and case.kv_len > case.q_len
    if not (beyond or case.segments is not None or _bias_hides(case)):
        return None
    return {"replacement": choose(REPLACEMENTS)}


def _padding(choose: Choose, case: Case) -> Parameters:
    return None if case.kv_len % space.LANES == 0 else {}


def _hidden_bias(choose: Choose, case: Case) -> Parameters:
    if case.bias is None or not (case.causal or case.segments is not None):
        return None
    return {"replacement": choose(tuple(REPLACING_BIAS))}


def _bias_hides(case: Case) -> bool:
    return case.bias is not None and case.bias.family.startswith("inf")


def _hides(case: Case) -> bool:
    return case.causal or case.segments is not None or _bias_hides(case)


def _permutation(choose: Choose, case: Case) -> Parameters:
    if case.batch == case.heads == 1:
        return None
    orders = [[list(order) for order in permutations(range(n))] for n in (case.batch, case.heads)]
    # The identity would show nothing.
    first, second = choose([pair for pair in _pairs(*orders)][1:])
    return {"batch_order": first, "head_order": second}


def _pairs(first: list, second: list) -> list[tuple[Any, Any]]:
    return [(a, b) for a in first for b in second]


def _duplication(choose: Choose, case: Case) -> Parameters:
    if case.batch == 1:
        return None
    rows = range(case.batch)
    return {"copy": choose([[a, b] for a in rows for b in rows if a != b])}


def _batch_split(choose: Choose, case: Case) -> Parameters:
    block_b = 1 if case.block_sizes is None else case.block_sizes.block_b
    cuts = [cut for cut in range(1, case.batch) if block_b <= min(cut, case.batch - cut)]
    return {"cut": choose(cuts)} if cuts else None


def _relabelling(choose: Choose, case: Case) -> Parameters:
    """Other labels: the same backwards, from the largest down, from the least up, far apart."""
    if case.segments is None:
        return None
    present = sorted(
        {label for rows in (case.segments.q, case.segments.kv) for row in rows for label, _ in row}
    )
    limits = np.iinfo(case.segments.dtype)
    count = len(present)
    least, largest = int(limits.min), int(limits.max)
    ways = [
        list(range(count)),
        present[::-1],
        [largest - n for n in range(count)],
        [least + n for n in range(count)],
        [(least if n % 2 else largest) + (n // 2) * (1 if n % 2 else -1) for n in range(count)],
    ]
    return {"labels": choose(ways)}


def _scaling(choose: Choose, case: Case) -> Parameters:
    if case.values == "near_underflow":
        return None
    powers = [(1, 0), (0, 1), (-1, 3), (10, 10), (20, -10)]
    v_power, do_power = choose(powers)
    return {"v_power": v_power, "do_power": do_power}


def _constant_values(choose: Choose, case: Case) -> Parameters:
    return {"constant": choose((1, -3, 0, 100))}


def _bias_shift(choose: Choose, case: Case) -> Parameters:
    return None if case.bias is None else {"shift": choose((1, 2, 8))}


def _linearity(choose: Choose, case: Case) -> Parameters:
    return {"period": choose((2, 3))} if _backward(case) else None


def _of_bias(choose: Choose, case: Case) -> Parameters:
    return {} if case.bias is not None and _backward(case) else None


def _block_choice(choose: Choose, case: Case) -> Parameters:
    if case.block_sizes is not None and choose((False, True)):
        return {"other_blocks": None}
    if choose((False, True)):
        return {"other_blocks": GET_DEFAULT}
    other = space.draw_blocks(choose, case.q_len, case.kv_len, case.batch, backward=_backward(case))
    return {"other_blocks": other.fields()}


def _concatenation(choose: Choose, case: Case) -> Parameters:
    if case.segments is not None:
        return None
    both = [cut for cut in space.cuts(case.q_len) if cut < case.kv_len]
    if not both or case.kv_len < 2:
        return None
    q_cut = choose(both)
    return {"cut": [q_cut, q_cut if case.causal else choose(space.cuts(case.kv_len))]}


_PARAMETERS: dict[str, Callable[[Choose, Case], Parameters]] = {
    "invariances.same_call": _none,
    "invariances.hidden_keys": _hidden_keys,
    "invariances.unseen_keys": _unseen_keys,
    "invariances.hidden_bias": _hidden_bias,
    "invariances.padding": _padding,
    "invariances.permutation": _permutation,
    "invariances.duplication": _duplication,
    "invariances.batch_split": _batch_split,
    "invariances.relabelling": _relabelling,
    "invariances.scaling": _scaling,
    "invariances.block_choice": _block_choice,
    "invariances.concatenation": _concatenation,
    "invariances.constant_values": _constant_values,
    "invariances.bias_shift": _bias_shift,
    "invariances.sum_of_dv": _of_gradients,
    "invariances.sum_of_dab": _of_bias,
    "invariances.gradients_agree": _of_bias,
    "invariances.linearity": _linearity,
}

DRAWN = tuple(_PARAMETERS)
"""The properties to put a drawn case to, in an order that keeps what they share."""


def drawn_for(target: Target) -> list[str]:
    """Those of `DRAWN` that say something about a target."""
    return [name for name in DRAWN if target.strict or name != "invariances.padding"]
