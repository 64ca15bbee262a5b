"""The adapters that ship are right where what they adapt is, and refuse what they say."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from properties import engines
from properties.cases.case import Bias, Blocks, Case, Segments
from properties.claims import checks
from properties.judging.targets import Target

SPLASH = Target.load("properties.adapters.splash:adapter")
JAX_NN = Target.load("properties.adapters.jax_nn:adapter")

TWO = Segments("int32", (((0, 128), (1, 128)),), (((0, 64), (1, 192)),))
PLAIN = Case(2, 2, 256, 256, 8, causal=True, segments=TWO)
BLOCKS = Blocks(128, 256, 128, 1, 256, 256, 128, 128, 256, 128, 256)
# Under causal order the first queries of the second part come before all its keys.
UNSEEING = Segments("int32", (((0, 128), (1, 128)),), (((0, 150), (1, 150)),))


def _passes(name: str, case: Case, target: Target) -> bool:
    result = checks.PROPERTIES[name](case, target, "auto")
    assert result.failure is None
    return not (result.refused or result.skipped)


@pytest.mark.parametrize("blocks", [None, BLOCKS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_splash_is_right_with_its_residuals(dtype: str, blocks: Blocks | None) -> None:
    segments = Segments("int32", TWO.q * 2, TWO.kv * 2)
    case = replace(PLAIN, dtype=dtype, segments=segments, block_sizes=blocks, sm_scale=0.5)

    result = checks.PROPERTIES["gradients"](case, SPLASH, "auto")

    assert result.failure is None
    assert [each.output for each in result.verdicts] == ["o", "o", "lse", "dq", "dk", "dv"]


@pytest.mark.parametrize("sm_scale", [0.3, -1.3])
def test_scale_that_would_round_is_refused(sm_scale: float) -> None:
    case = replace(PLAIN, batch=1, sm_scale=sm_scale)

    assert not _passes("outputs", case, SPLASH)
    assert _passes("outputs", case, JAX_NN)
    assert not _passes("outputs", replace(case, bias=Bias("float32", "normal")), JAX_NN)


@pytest.mark.parametrize("bias", [None, Bias("bfloat16", "inf_columns")])
def test_jax_nn_is_right(bias: Bias | None) -> None:
    assert _passes("gradients", Case(1, 2, 9, 200, 64, bias=bias, sm_scale=-0.125), JAX_NN)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("statistics", Case(1, 1, 256, 300, 64, causal=True, sm_scale=0.125, segments=UNSEEING)),
        (
            "invariances.concatenation",
            Case(
                *(1, 1, 2, 2, 1),
                bias=Bias("float32", "inf_columns"),
                parameters={"cut": [1, 1]},
            ),
        ),
    ],
)
def test_rows_that_see_nothing_may_give_anything(name: str, case: Case) -> None:
    assert _passes(name, case, JAX_NN)


def test_kernel_under_vmap_is_not_simulated() -> None:
    parameters = {"copies": "eager", "order": 0}
    case = Case(2, 1, 128, 128, 8, parameters=parameters)

    result = checks.PROPERTIES["memory"](case, SPLASH, "auto")

    assert "vmap" in result.skipped


def test_kernel_of_64_bits_is_not_given_to_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = (x[...].astype(jnp.float64) * 2).astype(jnp.float32)

    def call(q: Any, *args: Any, **options: Any) -> Any:
        return pl.pallas_call(kernel, jax.ShapeDtypeStruct(q.shape, q.dtype))(q)

    compiled = []
    monkeypatch.setattr(engines.Program, "compile_for", lambda *args: compiled.append(args))
    target = Target("doubling", call, dict, tuple, features=frozenset())
    case = Case(1, 1, 8, 128, 8, parameters={"generations": ["v5e"], "x64": True})

    result = checks.PROPERTIES["compilation"](case, target, "auto")

    assert result.failure is not None
    assert "float64" in result.failure.message
    assert not compiled
