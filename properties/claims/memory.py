"""Whether a call uses memory as a TPU's must be used: it reads nothing unwritten, nothing out of
bounds, and no two of its cores meet in one place."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from properties.cases import records
from properties.cases.case import Case
from properties.judging.result import Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict

COPIES = ("eager", "on_wait")
ORDERS = range(4)

REFERENCE = "interpret"


def memory(judge: Callable[[Case, Target, str], Result], case: Case, target: Target) -> Result:
    """A call is right on a simulated TPU, and gives the same bits there as in Pallas's interpreter.

    The TPU has two cores, memory that is NaN until it is written, and raises where a read leaves
    its buffer or the cores race. `case.parameters["copies"]` says when copies between memories are
    made ("eager": when they are started, "on_wait": as late as they may be), `order` in which of
    four random orders the steps of parallel grid axes come. `judge` is a property that runs a
    target and judges it.

    Bits are the same because both interpreters make the same operations on the same tiles, and
    neither contracts a product and a sum to one operation. Not so where a tile has one row or one
    column: what stands around a product of a matrix and a vector decides in which order XLA sums
    it. There, and for a target whose tiles are not known, both results are within the bounds.
    """
    copies = records.choice(case.parameters.get("copies"), "parameters.copies", COPIES)
    order = records.integer(
        case.parameters.get("order"), "parameters.order", least=0, below=len(ORDERS)
    )
    simulation = f"tpu-interpret-{copies}-order-{order}"
    result = judge(case, target, simulation)
    result.name, result.mode = "memory", "tpu-interpret"
    result.ran = ["tpu-interpret"] * len(result.ran)
    if result.failure or result.refused or result.skipped:
        return result
    simulated = result.got
    reference = judge(case, target, REFERENCE)
    result.ran += reference.ran
    result.oracle_seconds += reference.oracle_seconds
    result.verdicts += reference.verdicts
    if reference.got is not None and target.strict and not _has_vectors(case):
        result.verdicts += _same_bits(simulated, reference.got)
    return result


def _has_vectors(case: Case) -> bool:
    """Whether a tile of queries has a single row, or a single column."""
    blocks = case.block_sizes
    given = [blocks.block_q, blocks.block_q_dkv, blocks.block_q_dq] if blocks else []
    return 1 in (case.head_dim, case.q_len, *given)


def _same_bits(simulated: dict[str, Any], reference: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    expected = jax.tree.leaves_with_path(reference)
    for (path, wanted), got in zip(expected, jax.tree.leaves(simulated), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=" ")
        # Also where both are NaN, as they may be in rows that are not judged.
        wrong = ~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))
        if not wrong.any():
            verdicts.append(Verdict(name))
            continue
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        verdicts.append(
            Verdict(
                name,
                f"differs from {REFERENCE} in {int(wrong.sum())} of {wrong.size} elements",
                index,
                got=float(got[index]),
                expected=float(wanted[index]),
                bound=0.0,
                ratio=float("inf"),
            )
        )
    return verdicts
