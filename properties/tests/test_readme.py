"""The README's Python runs as it stands: a right attention passes it, a wrong one fails."""

import pathlib
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernel import mha_reference_no_custom_vjp
from properties.cases.case import Case
from properties.claims import checks
from properties.judging.targets import Target

README = pathlib.Path(__file__).parents[2] / "README.md"


def _block(holding: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if holding in block]
    return found


def _attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> np.ndarray:
    logits = np.einsum("bhqd,bhkd->bhqk", q, k) * np.float32(scale)
    if causal:
        logits = np.where(np.tri(*logits.shape[2:]) == 1, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


def _test_with(attention: Callable[..., Any], folder: pathlib.Path) -> Callable[[], None]:
    # In a file of its own, as a user's is: Hypothesis reads the source of the tests that it runs.
    file = folder / "test_mine.py"
    file.write_text(_block("test_my_attention"), encoding="utf-8")
    names: dict[str, Any] = {"my_attention": attention}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    return names["test_my_attention"]


def test_own_test_passes_a_right_attention(tmp_path: pathlib.Path) -> None:
    _test_with(_attention, tmp_path)()


def test_own_test_fails_a_wrong_attention(tmp_path: pathlib.Path) -> None:
    wrong = _test_with(lambda q, k, v, causal, scale: _attention(q, k, v, False, scale), tmp_path)
    with pytest.raises(AssertionError):
        wrong()


def test_adapter_is_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = types.ModuleType("my_package"), types.ModuleType("my_package.attention")
    vars(module)["attend"] = lambda q, k, v, causal, scale: mha_reference_no_custom_vjp(
        q, k, v, causal=causal, sm_scale=scale
    )
    vars(package)["attention"] = module
    adapter = types.ModuleType("my_adapter")
    for each in (package, module, adapter):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    exec(compile(_block("class Adapter"), "README.md", "exec"), vars(adapter))
    target = Target.load("my_adapter:adapter")
    result = checks.gradients(Case(1, 2, 9, 17, 8, "bfloat16", causal=True), target, "numpy")
    assert result.verdicts
    assert result.failure is None
    assert "bias" not in target.features
