"""TPU chips that are not there.

As a plugin of pytest (`-p properties.tests.emulated_chip`) it gives a run as many chips as
EMULATED_CHIPS says, in the folder EMULATED_DEVICES. Chips are claimed, programs lowered for a
device, sent to it, and fetched, as on a TPU. The device is jax's CPU, for which the target
`adapter` computes what a TPU does at default precision. Or, with EMULATED_GENERATION, each program
is lowered for that TPU, and what it gives is computed by the NumPy engine, rounding as a TPU does.
"""

import contextlib
import functools
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from properties.engines import chips
from properties.engines.numpy_engine import arithmetic, computations
from properties.engines.program import Program


def _emulate(count: int, folder: pathlib.Path) -> None:
    # The harness's tests keep jax to the CPU, as users with a TPU do not.
    os.environ.pop("JAX_PLATFORMS", None)
    for chip in range(count):
        (folder / f"accel{chip}").touch()
    chips.DEVICES, chips.PLATFORMS = folder, "cpu"
    devices: Any = jax.devices
    jax.devices = lambda backend=None: devices("cpu" if backend == "tpu" else backend)[:1]
    if "EMULATED_GENERATION" in os.environ:
        compute_as_a_tpu(pytest.MonkeyPatch(), os.environ["EMULATED_GENERATION"])


def pytest_sessionstart() -> None:
    """Says in EMULATED_CLAIMS, a file, which chip this process has."""
    if claims := os.environ.get("EMULATED_CLAIMS"):
        with open(claims, "a", encoding="utf-8") as file:
            file.write(os.environ.get("TPU_VISIBLE_CHIPS", "none") + "\n")


class adapter:
    """Attention in plain jax. With EMULATED_CRASH, a file, the first process that calls it dies."""

    features = frozenset({"causal", "gradients"})
    dtypes = ("float32",)
    masked_rows = "zero"

    @staticmethod
    def call(q, k, v, ab, segment_ids, *, causal, sm_scale, block_sizes, debug):
        if crash := os.environ.get("EMULATED_CRASH"):
            _crash_once(pathlib.Path(crash))
        return _attend(q, k, v, causal, sm_scale)


def _crash_once(crashed: pathlib.Path) -> None:
    with contextlib.suppress(FileExistsError):
        crashed.touch(exist_ok=False)
        os._exit(1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attend(q, k, v, causal, sm_scale):
    return _forward(q, k, v, causal, sm_scale)[0]


def _forward(q, k, v, causal, sm_scale):
    logits = _product("bhqd,bhkd->bhqk", q, k) * sm_scale
    if causal:
        logits = jnp.where(jnp.tri(q.shape[2], k.shape[2], dtype=bool), logits, -jnp.inf)
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    o = _product("bhqk,bhkd->bhqd", weights, v)
    return o, (q, k, v, weights, o)


def _backward(causal, sm_scale, saved, do):
    q, k, v, weights, o = saved
    dp = _product("bhqd,bhkd->bhqk", do, v)
    ds = weights * (dp - (o * do).sum(-1, keepdims=True)) * sm_scale
    return (
        _product("bhqk,bhkd->bhqd", ds, k),
        _product("bhqk,bhqd->bhkd", ds, q),
        _product("bhqk,bhqd->bhkd", weights, do),
    )


_attend.defvjp(_forward, _backward)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    a, b = (jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7) for x in (a, b))
    return jnp.einsum(subscripts, a, b)


class _InBfloat16(arithmetic.DotGeneral):
    def __call__(self, lhs, rhs):
        return super().__call__(*(x.astype(ml_dtypes.bfloat16).astype(x.dtype) for x in (lhs, rhs)))


def compute_as_a_tpu(monkeypatch: pytest.MonkeyPatch, generation: str) -> None:
    """Lets mode tpu lower for a generation, and compute in the NumPy engine as a TPU may.

    Operands of products are rounded to bfloat16, exp and quotients to 17 bits: 64 units in the last
    place.
    """
    monkeypatch.setattr(arithmetic, "DotGeneral", _InBfloat16)
    for name in ("exp", "div"):
        rule = computations.RULES[name]

        def rough(names, params, out, *operands, rule=rule):
            source = rule(names, params, out, *operands)
            return f"{names.name(_roughly)}({source})" if out.dtype == np.float32 else source

        monkeypatch.setitem(computations.RULES, name, rough)

    def executable(program, mode):
        if mode != "tpu":
            return others(program, mode)
        program.lower_for(generation)
        return others(program, "numpy")

    others = Program._executable
    monkeypatch.setattr(Program, "_executable", executable)


def _roughly(array):
    fraction, exponent = np.frexp(np.asarray(array, np.float32))
    return np.ldexp(np.rint(np.ldexp(fraction, 17)), exponent - 17).astype(np.float32)


if "EMULATED_CHIPS" in os.environ:
    _emulate(int(os.environ["EMULATED_CHIPS"]), pathlib.Path(os.environ["EMULATED_DEVICES"]))
