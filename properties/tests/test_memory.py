"""The memory property holds for the kernel, and fails for kernels that misuse memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties import engines
from properties.cases.case import Case, CaseError
from properties.claims import checks
from properties.engines import simulation
from properties.judging.targets import Target

PARAMETERS = {"copies": "on_wait", "order": 1}
KERNEL = Target.load("kernel:flash_attention")


def attention(body, **call):
    """A target whose o is softmax(q kᵀ) v, and which then passes it through a kernel of `body`."""

    def attend(q, k, v, ab, segment_ids, *, causal, sm_scale, block_sizes, debug):
        o = jax.nn.softmax(q @ k.mT * sm_scale) @ v
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(o.shape, o.dtype), **call)(o)

    return Target(
        *("tests:attention", attend, KERNEL.block_sizes, KERNEL.segment_ids),
        features=frozenset(),
    )


def parallel(out_index, steps=2):
    """A grid of parallel steps, of which each takes a head and writes the block `out_index`."""
    shape = (1, 1, 8, 128)
    return {
        "grid": (steps,),
        "in_specs": [pl.BlockSpec(shape, lambda i: (0, i, 0, 0))],
        "out_specs": pl.BlockSpec(shape, out_index),
        "compiler_params": pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
    }


CASE = Case(1, 2, 8, 8, 128, sm_scale=0.1, parameters=PARAMETERS)


def copy(in_ref, out_ref):
    out_ref[...] = in_ref[...]


def memory(target, case=CASE):
    return checks.PROPERTIES["memory"](case, target, "auto")


@pytest.mark.parametrize("copies", ["eager", "on_wait"])
def test_holds(copies):
    case = Case(2, 1, 9, 24, 8, sm_scale=0.3, parameters={"copies": copies, "order": 3})
    result = memory(KERNEL, case)
    assert (result.failure, result.skipped, result.refused) == (None, "", "")
    assert result.ran == ["tpu-interpret", "interpret"]
    assert result.rows > 0


@pytest.mark.parametrize("changes", [{"head_dim": 1}, {"q_len": 1}])
def test_products_with_a_vector_are_right_but_may_have_other_bits(changes):
    result = memory(KERNEL, replace(CASE, sm_scale=0.3, **changes))
    assert result.failure is None
    # o, o as saved, m, l and three gradients, in each interpreter; bits are not compared.
    assert len(result.verdicts) == 14


def test_sound_kernel_passes():
    assert memory(attention(copy, **parallel(lambda i: (0, i, 0, 0)))).failure is None


def test_race_fails():
    """Both steps write head 0: the same numbers if the steps have the same inputs."""
    racing = attention(copy, **parallel(lambda i: (0, 0, 0, 0)))
    failure = memory(racing).failure
    assert failure is not None
    assert "race between cores" in failure.message
    assert "\n" not in failure.message
    # The simulation is in order again.
    assert memory(attention(copy, **parallel(lambda i: (0, i, 0, 0)))).failure is None


def test_race_is_seen_where_numbers_are_right():
    """No other property can see this: each step writes the same."""

    def constant(out_ref):
        out_ref[...] = jnp.ones(out_ref.shape, out_ref.dtype)

    racing = pl.pallas_call(
        constant,
        grid=(2,),
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=(pltpu.PARALLEL,)),
    )
    program = engines.trace(lambda x: x + racing()[0, 0], np.float32(1))
    assert program.run("interpret", np.float32(1)) == 2
    with pytest.raises(engines.KernelFault, match=r"race between cores: write of .* write of"):
        program.run("tpu-interpret-eager-order-0", np.float32(1))


def test_unwritten_memory_fails():
    """Scratch memory is read before it is written; other interpreters make it zero."""

    def unwritten(in_ref, out_ref, scratch):
        out_ref[...] = in_ref[...] + jnp.where(scratch[0, 0] > 0, 1.0, 0.0) * scratch[0, 0]

    target = attention(unwritten, scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)])
    failure = memory(target).failure
    assert failure is not None
    assert "not finite" in failure.message


def test_stray_read_fails():
    def stray(in_ref, out_ref):
        row = jnp.where(in_ref[0, 0, 0, 0] < 1e30, 8, 0)
        out_ref[...] = in_ref[...] + 0 * in_ref[0, 0, pl.ds(row, 1), :]

    failure = memory(attention(stray)).failure
    assert failure is not None
    assert "out-of-bounds" in failure.message.lower()


def test_other_bits_fail(monkeypatch):
    """A result that is right in both interpreters, but not the same."""
    run = engines.Program.run

    def off(self, mode, *args):
        results = run(self, mode, *args)
        if mode.startswith("tpu-interpret"):
            o = results["o"].copy()
            o[0, 0, 1, 2] = np.nextafter(o[0, 0, 1, 2], np.float32(9))
            results["o"] = o
        return results

    monkeypatch.setattr(engines.Program, "run", off)
    failure = memory(replace(attention(copy), strict=True)).failure
    assert failure is not None
    assert (failure.output, failure.index) == ("o", (0, 0, 1, 2))
    assert "differs from interpret in 1 of" in failure.message


def test_silent_simulation_is_skipped(monkeypatch):
    monkeypatch.setattr(simulation, "_races_are_reported", lambda: False)
    result = memory(attention(copy))
    assert "does not report races" in result.skipped
    assert result.failure is None


def test_a_race_is_tried_first_where_none_would_be_raised(monkeypatch):
    """As on a jax that prints races: what is heard of the trial decides."""
    monkeypatch.setattr(simulation.dataclasses, "fields", lambda _: ())
    try:
        simulation._races_are_reported.cache_clear()
        assert simulation._races_are_reported()
        simulation._races_are_reported.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulation, "_run", lambda simulated: [])
            assert not simulation._races_are_reported()
    finally:
        simulation._races_are_reported.cache_clear()


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "parameters.copies: got null"),
        ({"copies": "late", "order": 0}, "expected one of eager, on_wait"),
        ({"copies": "eager", "order": 4}, "parameters.order: got 4; must be below 4"),
    ],
)
def test_unreadable_parameters(parameters, complaint):
    with pytest.raises(CaseError, match=complaint):
        memory(KERNEL, Case(1, 1, 8, 8, 8, parameters=parameters))
