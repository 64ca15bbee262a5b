"""How arrays are passed, and where a call is made: neither changes what it gives."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from properties import engines
from properties.claims.transformations import elsewhere
from properties.claims.transformations.table import (
    attention,
    transformation,
    unchanged,
    with_gradients,
)
from properties.engines.interpret import as_function, with_interpret
from properties.judging import programs
from properties.judging.calls import Calls, Outputs
from properties.judging.result import CHIP, engines_for
from properties.judging.targets import Target, TargetError
from properties.judging.verdict import Verdict


def _strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=-1)[..., ::2]


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": np.asarray,
    "jax": jnp.asarray,
    "fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "read_only": lambda array: np.broadcast_to(array, array.shape),
}
"""Arrays of the same numbers that lie otherwise in memory, by name."""


@transformation
def array_kind(calls: Calls) -> None:
    """f(x) is the same for concrete arrays of NumPy or jax, however they lie in memory.

    `parameters["kind"]` is one of `KINDS`.
    """
    kind = KINDS[calls.choice("kind", KINDS)]
    attend = attention(calls)
    function = with_gradients(calls, attend)
    arrays = [None if array is None else kind(array) for array in calls.arrays]

    # What is differentiated reaches the target as jax's own; the plain call gets it as it is.
    def both() -> Any:
        return {"o": attend(*arrays[:6])}, function(*arrays)

    forward, got = calls.run_function(both)
    unchanged(calls, got)
    calls.of = ()
    calls.repeats(forward, {"o": calls.run()["o"]}, calls.plain_truth)


@transformation
def weak_types(calls: Calls) -> None:
    """f(x) is the same if the types of q, k and v are weak, as those of Python's numbers are.

    q, k and v are then of plus and minus ones: numbers of a weak type come from literals.
    """
    if calls.case.dtype != "float32":
        calls.stop("weak types are float32")
    function = with_gradients(calls, attention(calls))
    names = ("q", "k", "v")

    def weak(q: Any, k: Any, v: Any, *others: Any) -> Any:
        return function(*(jnp.where(array > 0, 1.0, -1.0) for array in (q, k, v)), *others)

    ones = {name: np.where(getattr(calls.arrays, name) > 0, 1, -1) for name in names}
    strong = calls.with_arrays(**{name: each.astype(np.float32) for name, each in ones.items()})
    got, expected = calls.run_function(weak, *calls.arrays), strong.run()
    strong.repeats(got, {name: expected[name] for name in got}, strong.truth)


@transformation
def ahead_of_time(calls: Calls) -> None:
    """jit(f)(x) = jit(f).lower(x).compile()(x), in Pallas's interpreter."""
    if calls.result.mode not in ("auto", "interpret"):
        calls.stop("compiled in Pallas's interpreter only")
    calls.result.mode = "interpret"
    case, target, arrays, of = calls.case, calls.target, calls.arrays, calls.of[:1]
    if of:
        given = (*programs.inputs(arrays), arrays.do)
        both = calls.attempt(
            lambda: _BothWays(programs.gradients(case, target, arrays, of)), *given
        )
    else:
        given = programs.inputs(arrays)
        both = calls.attempt(lambda: _BothWays(programs.outputs(case, target, arrays)), *given)
    calls.exact(*both)


class _BothWays:
    """A program that runs twice: called, and compiled ahead of time."""

    def __init__(self, program: engines.Program) -> None:
        self._function = jax.jit(as_function(with_interpret(program.jaxpr, True)))

    def run(self, mode: str, *args: Any) -> tuple[Outputs, Outputs]:
        del mode
        leaves = jax.tree.leaves(args)

        def named(results: list[Any]) -> Outputs:
            return {f"result {number}": np.asarray(each) for number, each in enumerate(results)}

        called, compiled = self._function, self._function.lower(*leaves).compile()
        return named(called(*leaves)), named(compiled(*leaves))


@transformation
def another_process(calls: Calls) -> None:
    """f(x) has the same bits in another process."""
    if engines_for(calls.result.mode) == (CHIP,):
        calls.stop("a chip belongs to one process")
    target = calls.target
    try:
        same = Target.load(target.name, target.masked_rows).call is target.call
    except TargetError:
        same = False
    if not same:
        calls.stop("the target cannot be imported by its name")
    plain = calls.plain()
    request = {
        "target": target.name,
        "masked_rows": target.masked_rows,
        "mode": calls.result.mode,
        "case": calls.case.to_dict(),
        "folder": str(calls.case.folder.absolute()),
    }
    done = subprocess.run(
        [sys.executable, "-c", f"from {elsewhere.__name__} import main; main()"],
        input=json.dumps(request),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        calls.result.verdicts.append(Verdict("call", f"in another process: {done.stderr[-400:]}"))
        return
    found = json.loads(done.stdout.splitlines()[-1])
    calls.result.rows += calls.sees.size
    for name, digest in elsewhere.digests(plain).items():
        message = "" if found.get(name) == digest else "has other bits in another process"
        calls.result.verdicts.append(Verdict(name, message, elements=plain[name].size))
