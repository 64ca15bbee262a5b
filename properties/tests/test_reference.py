"""The references that the kernel ships for its users are right to within the same bounds."""

import pytest
from hypothesis import given, settings

import kernel
from properties.claims import checks
from properties.drawing import strategies
from properties.faults.subjects import SUBJECTS

_TARGETS = {name: SUBJECTS[name](kernel) for name in SUBJECTS if name.startswith("mha_")}


@pytest.mark.parametrize("name", _TARGETS)
@settings(max_examples=25, deadline=None)
@given(case=strategies.gradient_cases(block_sizes=False))
def test_reference_is_right(name, case):
    target = _TARGETS[name]
    judge = checks.gradients if "gradients" in target.features else checks.outputs
    result = judge(case, target, "auto")
    assert result.failure is None, result.failure
    assert result.ran
