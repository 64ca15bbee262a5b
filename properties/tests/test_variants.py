"""Correct attention in all its ways passes every property that compares with the truth."""

import random
from dataclasses import replace

import pytest

from properties.cases import values
from properties.cases.case import DTYPES, Case
from properties.claims import checks
from properties.drawing import designated
from properties.drawing.guide import Guide
from properties.drawing.space import Space
from properties.judging.targets import Target
from properties.tests import variants

# Further data in a traced program costs little: each configuration has so many families.
_FAMILIES_EACH = 4


def _target(name: str) -> Target:
    return Target.load(f"{variants.__name__}:{name}")


def _cases(target: Target) -> list[Case]:
    """Every family of values in both dtypes, in configurations that a run would visit."""
    chosen = random.Random(target.name)
    cases = []
    for dtype in DTYPES:
        guide = Guide(Space(**target.restrictions | {"dtypes": (dtype,)}), [])
        for number, family in enumerate(values.FAMILIES):
            if number % _FAMILIES_EACH == 0:
                case = guide.draw(chosen).case
            cases.append(replace(case, values=family))
    return cases


@pytest.mark.parametrize("variant", variants.CORRECT)
def test_correct_variant_passes(variant: str) -> None:
    target = _target(variant)
    for case in _cases(target):
        result = checks.gradients(case, target, "auto")
        assert result.failure is None, (result.failure, case)
        assert result.verdicts, case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", variants.CORRECT)
def test_correct_variant_passes_statistics(variant: str, dtype: str) -> None:
    target = _target(variant)
    chosen = random.Random(variant)
    case = designated.draw(chosen.choice, Space(**target.restrictions | {"dtypes": (dtype,)}))

    # As it is, and as a target whose residuals cannot be read: gradients are judged end to end.
    for each in (target, replace(target, residuals=None)):
        result = checks.statistics(case, each, "auto")
        assert result.failure is None, (result.failure, case)
        assert any(verdict.output == "dq paired" for verdict in result.verdicts)


def test_operands_rounded_as_a_tpu_does_must_be_declared() -> None:
    case = Case(1, 2, 128, 128, 64, sm_scale=0.125)
    said, unsaid = _target("rounds_operands"), _target("rounds_operands_unsaid")

    # What is said is what mode "tpu" assumes, which exp and others of the chip add to.
    declared = said.arithmetic(case, "numpy")
    of_a_tpu = _target("divides_last").arithmetic(case, "tpu")
    assert replace(of_a_tpu, exp=declared.exp, quotient=0.0, log=0.0) == declared
    assert checks.gradients(case, said, "numpy").failure is None
    assert checks.gradients(case, unsaid, "numpy").failure is not None
    # bfloat16 operands are what they are.
    narrow = replace(case, dtype="bfloat16")
    assert checks.gradients(narrow, unsaid, "numpy").failure is None


def test_sum_of_rounded_weights_must_be_declared() -> None:
    case = Case(1, 2, 128, 128, 64, dtype="bfloat16", sm_scale=0.125)
    said = _target("sums_rounded_p")

    assert checks.outputs(case, said, "numpy").failure is None
    assert checks.outputs(case, replace(said, arithmetic_differs={}), "numpy").failure is not None
