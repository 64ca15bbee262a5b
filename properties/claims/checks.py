"""The properties, each a function of one case: run it on a target, hold the result to the oracle.

Tests, replay and every later command go through here, so that all of them judge alike.
"""

from collections.abc import Callable

from properties.cases.case import Case
from properties.claims import agreement, compilation, invariances, refusal, transformations
from properties.claims import memory as simulated
from properties.claims import statistics as of_all_elements
from properties.engines import Unsupported
from properties.judging import programs
from properties.judging.judge import (
    differentiated,
    judge_backward,
    judge_forward,
    truth_of,
    without_edge,
    without_masked_cotangents,
)
from properties.judging.result import Result, begin
from properties.judging.targets import Target
from properties.judging.verdict import raised

Begun = Callable[[], Result]
"""A property that has sent its work to a chip, if it runs on one: waits for it, and judges."""


def outputs(case: Case, target: Target, mode: str) -> Result:
    """o is within its bound of softmax over the visible keys of (q kᵀ + ab) sm_scale, times v;
    l and m, or lse, likewise, where the target lets them be read."""
    return begin_outputs(case, target, mode)()


def begin_outputs(case: Case, target: Target, mode: str) -> Begun:
    """The property `outputs`, as far as it goes without results."""
    result = Result("outputs", case, mode, skipped=target.unclaimed(case) or "")
    if result.skipped:
        return lambda: result
    arrays = case.arrays()
    fetch = begin(
        result,
        target,
        lambda: programs.outputs(case, target, arrays),
        *programs.inputs(arrays),
    )

    def judged() -> Result:
        got = fetch()
        if got is not None:
            with result.judging():
                judge_forward(result, target, truth_of(case, target, result.mode, arrays), got)
        return result

    return judged


def gradients(case: Case, target: Target, mode: str) -> Result:
    """The gradients of sum(o do) in q, k, v and ab are within their bounds of the truth.

    `case.parameters["gradient_of"]` names the arguments that are differentiated, all by default;
    do is random. Where l and m can be read, the backward is held to what follows from the target's
    own o, l and m, which is sharper, and these are held to the truth: together they imply the bound
    from end to end. A row without a visible key gets a cotangent like any other where it must give
    zeros, so that a leak shows; it gets none where it may give anything.
    """
    return begin_gradients(case, target, mode)()


def begin_gradients(case: Case, target: Target, mode: str) -> Begun:
    """The property `gradients`, as far as it goes without results."""
    result = Result("gradients", case, mode, skipped=target.unclaimed(case) or "")
    of = differentiated(case, target)
    if not of:
        result.skipped = f"{target.name} does not claim the gradient that is asked for"
    elif case.block_sizes is not None and not case.block_sizes.backward:
        result.skipped = "its block sizes are for the forward alone"
    if result.skipped:
        return lambda: result
    arrays = case.arrays()
    if target.masked_rows == "any":
        with result.judging():
            arrays = without_masked_cotangents(arrays, truth_of(case, target, mode, arrays))
    fetch = begin(
        result,
        target,
        lambda: programs.gradients(case, target, arrays, of),
        *programs.inputs(arrays),
        arrays.do,
    )

    def judged() -> Result:
        got = fetch()
        if got is not None:
            with result.judging():
                truth = truth_of(case, target, result.mode, arrays)
                judge_forward(result, target, truth, got)
                # Gradients from a wrong o, l or m would be judged against nonsense.
                if result.failure is None:
                    judge_backward(result, truth, arrays, got, of)
        return result

    return judged


def refusals(case: Case, target: Target, mode: str) -> Result:
    """A call that breaks a rule of the contract is refused as the rule says, before any kernel is
    traced; a call at the very edge of the rules is accepted and right.

    Where `case.parameters["everywhere"]` lists TPU generations, an accepted call is also run in
    both interpreters and compiled ahead of time for those.
    """
    if case.breaks is not None:
        return refusal.refusal(case, target, mode)
    judge = _fullest(case, target)
    result = judge(case, target, mode)
    result.name = "refusals"
    if "everywhere" not in case.parameters:
        return result
    for engine in ("interpret", "tpu-interpret"):
        if not (result.failure or result.refused or result.skipped):
            result.add(judge(case, target, engine))
    for generation in case.parameters["everywhere"]:
        if not (result.failure or result.refused or result.skipped):
            _compile(result, target, generation, backward=judge is gradients)
    return result


def engines(case: Case, target: Target, mode: str) -> Result:
    """What is right in the NumPy engine is right in Pallas's interpreter, and what is wrong, wrong.

    Both run the same traced program, with all outputs and gradients that the case allows, and are
    held to the same bounds: two right results cannot be further apart than these allow.
    """
    return agreement.agreement(_fullest(case, target), case, target, mode)


def statistics(case: Case, target: Target, mode: str) -> Result:
    """Over random data the errors are those of the declared roundings: in size, element by element
    (8 standard deviations), row by row and over an output, beside an emulation, and not biased."""
    return of_all_elements.statistics(_fullest(case, target), case, target, mode)


def memory(case: Case, target: Target, mode: str) -> Result:
    """On a simulated TPU nothing unwritten is read, nothing out of bounds, and cores do not meet: a
    call is right there, and gives the same bits as in Pallas's interpreter."""
    del mode  # the simulation is one of its own
    return simulated.memory(_fullest(case, target), case, target)


Property = Callable[[Case, Target, str], Result]

BEGINNINGS: dict[str, Callable[[Case, Target, str], Begun]] = {
    "outputs": begin_outputs,
    "gradients": begin_gradients,
}
"""Properties of which many cases can be begun before the first is judged."""

PROPERTIES: dict[str, Property] = {
    "outputs": outputs,
    "gradients": gradients,
    "refusals": refusals,
    "engines": engines,
    "statistics": statistics,
    "memory": memory,
    "compilation": compilation.compilation,
    **invariances.PROPERTIES,
    **transformations.PROPERTIES,
}


def _fullest(case: Case, target: Target) -> Property:
    """The property that judges all that an accepted call gives."""
    sizes = without_edge(case).block_sizes
    backward = sizes is None or sizes.backward
    return gradients if backward and "gradients" in target.features else outputs


def _compile(result: Result, target: Target, generation: str, *, backward: bool) -> None:
    """Compiles what was judged, by the program that was traced for it."""
    case = result.case
    arrays = case.arrays()
    if backward:
        program = programs.gradients(case, target, arrays, differentiated(case, target))
    else:
        program = programs.outputs(case, target, arrays)
    result.ran.append(f"compiled for {generation}")
    try:
        program.compile_for(generation)
    except Unsupported as error:
        result.skipped = str(error)
    # A compiler's error has no type of its own, and every one is the finding.
    except Exception as error:
        result.verdicts.append(raised(error, f"compiling for {generation}"))
