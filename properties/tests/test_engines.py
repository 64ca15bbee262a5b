"""Tracing, the interpreters, ahead-of-time compilation, and falling back."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties import engines
from properties.engines import numpy_engine
from properties.engines.numpy_engine.grid import Kernel
from properties.engines.program import modes_available

INTERPRETERS = ["interpret", "tpu-interpret"]
X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)


def double_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def double(x):
    """Two times x, by a kernel without any `interpret` argument."""
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        double_kernel, grid=(2,), in_specs=[block], out_specs=block, out_shape=out
    )(x)


@jax.custom_vjp
def double_with_rule(x):
    return double(x)


double_with_rule.defvjp(lambda x: (double(x), None), lambda _, g: (double(g),))


@jax.custom_batching.custom_vmap
def double_with_batching(x):
    return double(x)


@double_with_batching.def_vmap
def _(size, mapped, x):
    return jnp.stack([double(each) for each in x]), mapped[0]


NESTED: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "bare": (double, 2 * X),
    "jit": (jax.jit(double), 2 * X),
    "two": (lambda x: double(double(x)), 4 * X),
    "cond": (lambda x: lax.cond(x[0, 1] > 0, double, lambda x: x, x), 2 * X),
    "scan": (lambda x: lax.scan(lambda c, _: (double(c), None), x, length=3)[0], 8 * X),
    "while": (
        lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, double(c[1])), (0, x))[1],
        4 * X,
    ),
    "fori_loop": (lambda x: lax.fori_loop(0, 2, lambda _, x: double(x), x), 4 * X),
    "custom_vjp": (double_with_rule, 2 * X),
    "gradient": (jax.grad(lambda x: double_with_rule(x).sum()), np.full_like(X, 2)),
    "custom_vmap": (double_with_batching, 2 * X),
    "vmap": (
        lambda x: jax.vmap(double_with_batching)(jnp.stack([x, -x])),
        np.stack([2 * X, -2 * X]),
    ),
    "checkpoint": (jax.checkpoint(double), 2 * X),
    "jit in scan in cond": (
        lambda x: lax.cond(
            x[0, 1] > 0,
            lambda x: lax.scan(lambda c, _: (jax.jit(double)(c), c), x, length=2)[0],
            lambda x: x,
            x,
        ),
        4 * X,
    ),
}


@pytest.mark.parametrize("nesting", NESTED)
@pytest.mark.parametrize("mode", [*INTERPRETERS, "numpy"])
def test_kernels_are_found_however_deep_they_are(nesting, mode):
    function, expected = NESTED[nesting]
    np.testing.assert_array_equal(engines.trace(function, X).run(mode, X), expected)


@pytest.mark.parametrize("mode", INTERPRETERS)
def test_shard_map(mode):
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("x",), axis_types=auto, devices=jax.devices("cpu")[:1])
    spec = jax.sharding.PartitionSpec("x")
    split = jax.shard_map(double, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_array_equal(engines.trace(split, X).run(mode, X), 2 * X)


def test_race_detection_runs():
    mode = "tpu-interpret-on_wait-order-2"
    np.testing.assert_array_equal(engines.trace(double, X).run(mode, X), 2 * X)


@pytest.mark.parametrize("mode", [*INTERPRETERS, "numpy"])
def test_results_are_numpy_in_the_functions_own_structure(mode):
    args = ({"a": X, "b": X.astype(jnp.bfloat16)}, None)
    program = engines.trace(lambda tree, _: {"sum": tree["a"] + 1, "pair": (tree["b"], 2)}, *args)
    result = program.run(mode, *args)
    assert set(result) == {"sum", "pair"}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(result))
    assert result["pair"][0].dtype == jnp.bfloat16
    np.testing.assert_array_equal(result["sum"], X + 1)


@pytest.mark.parametrize("mode", [*INTERPRETERS, "numpy"])
def test_new_data_neither_traces_nor_compiles_again(mode):
    traced = []

    def function(x):
        traced.append(x)
        return double(x)

    program = engines.trace(function, jax.ShapeDtypeStruct(X.shape, X.dtype))
    program.run(mode, X)
    before = engines.STAGES.snapshot()
    np.testing.assert_array_equal(program.run(mode, -X), -2 * X)
    after = engines.STAGES.snapshot()
    assert len(traced) == 1
    assert all(after[stage] == before[stage] for stage in ("trace", "lower", "compile"))
    assert after["run"] > before["run"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((X[:8],), r"array 0 of args is float32\[8, 128\]; traced was float32\[16, 128\]"),
        ((X.astype(jnp.bfloat16),), r"is bfloat16\[16, 128\]"),
        ((X, X), "structure"),
    ],
)
def test_other_data_than_traced_is_refused(args, complaint):
    program = engines.trace(double, X)
    with pytest.raises(ValueError, match=complaint):
        program.run("numpy", *args)


def test_unknown_mode_and_generation_are_named():
    program = engines.trace(double, X)
    with pytest.raises(ValueError, match="'warp' is not known; choose one of interpret"):
        program.run("warp", X)
    with pytest.raises(ValueError, match="'v3' is not known; choose one of v4, v5e"):
        program.compile_for("v3")


def test_tpu_interpret_starts_memory_as_nan_and_recovers_from_a_fault():
    def unwritten(x_ref, o_ref, scratch):
        o_ref[...] = x_ref[...] + scratch[...]

    def beyond(n_ref, x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(pl.multiple_of(n_ref[0], 8), 16), :]

    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    scratch = [pltpu.VMEM(X.shape, jnp.float32)]
    poisoned = engines.trace(pl.pallas_call(unwritten, out_shape=out, scratch_shapes=scratch), X)
    assert np.isnan(poisoned.run("tpu-interpret", X)).all()

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    stray = engines.trace(
        pl.pallas_call(beyond, in_specs=specs, out_shape=out), np.array([8], np.int32), X
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?i)out-of-bounds"):
        stray.run("tpu-interpret", np.array([8], np.int32), X)
    np.testing.assert_array_equal(stray.run("tpu-interpret", np.array([0], np.int32), X), X)


@pytest.mark.parametrize("generation", engines.TOPOLOGIES)
def test_compiles_for_every_generation_without_a_tpu(generation):
    engines.trace(double, X).compile_for(generation)


def test_compile_for_raises_what_the_compiler_refuses():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    # Blocks of 5 rows do not fit the 8 sublanes, which no interpreter minds.
    block = pl.BlockSpec((5, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel,
        grid=(4,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
    )
    program = engines.trace(call, X)
    program.run("interpret", X)
    with pytest.raises(ValueError, match="divisible by 8"):
        program.compile_for("v5e")


def test_libtpu_stays_silent():
    code = (
        "import numpy as np, jax; from properties import engines;"
        "engines.trace(lambda x: x + 1, np.ones(8, np.float32)).compile_for('v6e')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("mode", [*INTERPRETERS, "numpy"])
def test_products_round_before_they_are_subtracted_from(mode):
    x = np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    program = engines.trace(lambda x, y, z: x * y - z, x, x[::-1], x)
    np.testing.assert_array_equal(program.run(mode, x, x[::-1], x * x[::-1]), np.zeros_like(x))


def test_no_tpu_is_seen_without_device_files():
    assert not engines.tpu_attached()
    assert "tpu" not in engines.modes_available()


def forget_availability():
    numpy_engine.why_unavailable.cache_clear()
    modes_available.cache_clear()


@pytest.fixture
def other_jax(monkeypatch):
    """A jax that the NumPy engine cannot read: the probe fails as a moved name would."""
    forget_availability()

    def moved(name):
        raise ImportError("cannot import name 'NDIndexer'")

    monkeypatch.setattr(numpy_engine.importlib, "import_module", moved)
    yield
    monkeypatch.undo()
    forget_availability()


def test_numpy_mode_is_off_with_one_line_when_jax_moves_its_internals(other_jax, capsys):
    assert engines.modes_available() == ("interpret", "tpu-interpret")
    assert engines.modes_available() == ("interpret", "tpu-interpret")
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert "numpy is off" in printed[0]
    assert "NDIndexer" in printed[0]


def test_without_numpy_mode_callers_fall_back_as_for_any_unsupported_program(other_jax):
    program = engines.trace(double, X)
    with pytest.raises(engines.Unsupported, match="NDIndexer"):
        program.run("numpy", X)
    np.testing.assert_array_equal(program.run("interpret", X), 2 * X)


def test_internals_that_changed_their_meaning_are_noticed(monkeypatch):
    forget_availability()
    monkeypatch.setattr(numpy_engine, "_probe", lambda x: 2 * x)
    try:
        assert "another meaning" in str(numpy_engine.why_unavailable())
    finally:
        forget_availability()


def test_this_jax_can_be_read():
    assert numpy_engine.why_unavailable() is None
    assert "numpy" in engines.modes_available()


@pytest.mark.parametrize("mode", [*INTERPRETERS, "numpy"])
def test_wide_arrays_are_seen_as_jax_sees_them(mode):
    wide = X.astype(np.float64)
    result = engines.trace(double, wide).run(mode, wide)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, 2 * X)


def test_a_kernel_called_twice_on_the_same_arrays_runs_once(monkeypatch: Any) -> None:
    """As where a program asks for a result and, in another call, for what was saved with it."""
    modes_available()  # tries the engine on a kernel of its own, once
    runs: list[Any] = []
    run = Kernel.__call__

    def counted(self: Kernel, *operands: Any) -> Any:
        runs.append(operands)
        return run(self, *operands)

    monkeypatch.setattr(Kernel, "__call__", counted)
    double = jax.jit(
        pl.pallas_call(
            lambda x_ref, o_ref: o_ref.__setitem__(..., 2 * x_ref[...]),
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        )
    )

    def calls(x: Any, y: Any) -> tuple[Any, ...]:
        return double(x + 1), double(x + 1), double(y + 1)

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    first, second, other = engines.trace(calls, x, -x).run("numpy", x, -x)

    assert len(runs) == 2
    np.testing.assert_array_equal(first, 2 * x + 2)
    np.testing.assert_array_equal(second, first)
    np.testing.assert_array_equal(other, 2 - 2 * x)
