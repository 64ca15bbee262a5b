"""The NumPy engine against Pallas's interpreters, one kernel feature at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties import engines

FLOAT32 = jnp.float32


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def like(*shape, dtype=FLOAT32):
    return jax.ShapeDtypeStruct(shape, dtype)


def assert_agree(function, *args, mode="interpret"):
    program = engines.trace(function, *args)
    ours = jax.tree.leaves(program.run("numpy", *args))
    theirs = jax.tree.leaves(program.run(mode, *args))
    for got, expected in zip(ours, theirs, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(got, expected)


def rows(length):
    return pl.BlockSpec((length, 128), lambda i: (i, 0))


def test_blocks_and_program_ids():
    def kernel(x_ref, o_ref):
        here = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
        o_ref[...] = x_ref[...] + here.astype(FLOAT32)

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    call = pl.pallas_call(
        kernel, grid=(2, 3), in_specs=[block], out_specs=block, out_shape=like(16, 384)
    )
    assert_agree(call, floats(16, 384))


def test_partial_blocks():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    call = pl.pallas_call(
        kernel, grid=(3,), in_specs=[rows(8)], out_specs=rows(8), out_shape=like(20, 128)
    )
    assert_agree(call, floats(20, 128))


def test_squeezed_dimensions_down_to_a_scalar():
    def kernel(x_ref, s_ref, o_ref):
        assert (x_ref.shape, s_ref.shape) == ((8, 128), ())
        o_ref[...] = x_ref[...] + s_ref[...]

    block = pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0))
    scalar = pl.BlockSpec((None, None), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel, grid=(3,), in_specs=[block, scalar], out_specs=block, out_shape=like(3, 8, 128)
    )
    assert_agree(call, floats(3, 8, 128), floats(3, 1))


def test_element_indexed_blocks():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    shifted = pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (8 * i + 8, 0))
    call = pl.pallas_call(
        kernel, grid=(2,), in_specs=[shifted], out_specs=rows(8), out_shape=like(16, 128)
    )
    assert_agree(call, floats(24, 128))


def test_scalar_prefetch_steers_index_maps():
    def kernel(order_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] * order_ref[pl.program_id(0)].astype(FLOAT32)

    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    call = pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=like(24, 128))
    assert_agree(call, np.array([2, 0, 1], np.int32), floats(24, 128))


def test_dynamic_grid():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    def function(count, x):
        return pl.pallas_call(
            kernel, grid=(count,), in_specs=[rows(8)], out_specs=rows(8), out_shape=like(16, 128)
        )(x)

    program = engines.trace(function, np.int32(2), floats(16, 128))
    np.testing.assert_array_equal(
        program.run("numpy", np.int32(2), floats(16, 128)), floats(16, 128) + 1
    )
    first_only = program.run("numpy", np.int32(1), floats(16, 128))
    assert np.isnan(first_only[8:]).all()


def test_scratch_accumulates_over_the_last_axis():
    def kernel(x_ref, o_ref, sum_ref):
        @pl.when(pl.program_id(1) == 0)
        def _start():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _end():
            o_ref[...] = sum_ref[...]

    call = pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        out_shape=like(16, 128),
        scratch_shapes=[pltpu.VMEM((8, 128), FLOAT32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )
    assert_agree(call, floats(16, 384))


def test_output_blocks_accumulate_while_they_stay():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    call = pl.pallas_call(
        kernel,
        grid=(3,),
        in_specs=[rows(8)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=like(8, 128),
    )
    assert_agree(call, floats(24, 128))


def test_aliased_output_keeps_what_no_step_covers():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    second = pl.BlockSpec((8, 128), lambda i: (1, 0))
    call = pl.pallas_call(
        kernel,
        grid=(1,),
        in_specs=[second],
        out_specs=second,
        out_shape=like(24, 128),
        input_output_aliases={0: 0},
    )
    x = floats(24, 128)
    before = x.copy()
    assert_agree(call, x)
    np.testing.assert_array_equal(x, before)


def test_loops_slices_and_masks():
    def kernel(x_ref, o_ref):
        def add(i, total):
            return total + x_ref[pl.ds(i * 8, 8), :]

        total = lax.fori_loop(0, 3, add, jnp.zeros((8, 128), FLOAT32))
        count = lax.while_loop(lambda n: n < 5, lambda n: n + 2, x_ref.shape[0] - 23)
        o_ref[0:8, :] = total + count.astype(FLOAT32)
        o_ref[pl.ds(8, 4, stride=2), :] = x_ref[0:4, :]
        o_ref[pl.ds(9, 4, stride=2), :] = x_ref.at[8:16][pl.ds(1, 4)]

    assert_agree(pl.pallas_call(kernel, out_shape=like(16, 128)), floats(24, 128))


def test_branches_with_results():
    def kernel(n_ref, x_ref, o_ref):
        x = x_ref[...]
        picked = lax.switch(n_ref[0], [lambda: x, lambda: -x, lambda: x * x])
        o_ref[...] = lax.cond(n_ref[0] > 1, lambda: picked + 1, lambda: picked)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    call = pl.pallas_call(kernel, in_specs=specs, out_shape=like(8, 128))
    for n in range(3):
        assert_agree(call, np.array([n], np.int32), floats(8, 128))


def test_reading_is_not_affected_by_later_writes():
    def kernel(x_ref, o_ref, keep_ref):
        keep_ref[...] = x_ref[...]
        old = keep_ref[...]
        keep_ref[...] = old * 10
        o_ref[...] = old + keep_ref[...]

    call = pl.pallas_call(
        kernel, out_shape=like(8, 128), scratch_shapes=[pltpu.VMEM((8, 128), FLOAT32)]
    )
    assert_agree(call, floats(8, 128))


def test_run_scoped_memory_and_references_seen_through_views():
    def kernel(x_ref, o_ref):
        def inner(memory):
            memory[...] = x_ref[...]
            flat = memory.reshape(16, 128)
            flat[3, :] = jnp.zeros((128,), FLOAT32)
            o_ref[...] = memory[...]

        pl.run_scoped(inner, pltpu.VMEM((2, 8, 128), FLOAT32))

    expected = floats(2, 8, 128)
    expected[0, 3] = 0
    program = engines.trace(pl.pallas_call(kernel, out_shape=like(2, 8, 128)), floats(2, 8, 128))
    np.testing.assert_array_equal(program.run("numpy", floats(2, 8, 128)), expected)


def test_copies_from_main_memory():
    def kernel(x_ref, o_ref, buffer, semaphores):
        def copy(slot):
            source = x_ref.at[pl.ds(slot * 8, 8)]
            return pltpu.make_async_copy(source, buffer.at[slot], semaphores.at[slot])

        copy(0).start()
        copy(1).start()
        copy(1).wait()
        copy(0).wait()
        o_ref[...] = buffer[0] - buffer[1]

    call = pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=like(8, 128),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), FLOAT32), pltpu.SemaphoreType.DMA((2,))],
    )
    assert_agree(call, floats(16, 128), mode="tpu-interpret")


def test_vmap_adds_a_grid_axis_that_the_kernel_does_not_see():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + pl.program_id(0).astype(FLOAT32)

    call = pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[rows(8)],
        out_specs=rows(8),
        out_shape=like(16, 128),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )
    assert_agree(jax.vmap(call), floats(3, 16, 128))


def test_narrow_accumulators_round_where_the_kernel_rounds():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        for _ in range(300):
            o_ref[...] += x_ref[...]

    call = pl.pallas_call(kernel, out_shape=like(8, 128, dtype=jnp.bfloat16))
    ones = np.ones((8, 128), jnp.bfloat16)
    program = engines.trace(call, ones)
    # 256 + 1 rounds back to 256, so a bfloat16 sum of ones stops there.
    np.testing.assert_array_equal(program.run("numpy", ones), 256 * ones)


def test_custom_rules_around_kernels():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 3

    call = pl.pallas_call(kernel, out_shape=like(8, 128))

    @jax.custom_batching.custom_vmap
    def batched(x):
        return call(x)

    @batched.def_vmap
    def _(size, mapped, x):
        return call(x.reshape(8, 128)).reshape(size, -1, 128), mapped[0]

    @jax.custom_vjp
    def tripled(x):
        return batched(x)

    tripled.defvjp(lambda x: (batched(x), x), lambda x, g: (batched(g) + x,))

    def function(x, g):
        out, vjp = jax.vjp(jax.jit(tripled), x)
        return out, vjp(g), jax.checkpoint(tripled)(g)

    assert_agree(function, floats(8, 128), floats(8, 128) + 1)


def test_new_data_does_not_see_the_old():
    def kernel(x_ref, o_ref, sum_ref):
        sum_ref[...] = x_ref[...]
        o_ref[...] = sum_ref[...]

    call = pl.pallas_call(
        kernel, out_shape=like(8, 128), scratch_shapes=[pltpu.VMEM((8, 128), FLOAT32)]
    )
    program = engines.trace(call, floats(8, 128))
    first = program.run("numpy", floats(8, 128))
    second = program.run("numpy", floats(8, 128) * 2)
    np.testing.assert_array_equal(second, 2 * first)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_x64_mode(dtype):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + jnp.asarray(pl.program_id(0), jnp.int32).astype(dtype)

    with jax.enable_x64(True):
        call = pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0)))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0))),
            out_shape=like(16, 128, dtype=dtype),
        )
        assert_agree(call, floats(16, 128).astype(dtype))


def test_an_input_block_the_kernel_writes_stays_while_the_block_does():
    def kernel(x_ref, o_ref):
        x_ref[...] = x_ref[...] * 2
        o_ref[...] = x_ref[...]

    call = pl.pallas_call(
        kernel,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, j)),
        out_shape=like(16, 256),
    )
    x = floats(16, 128)
    got = engines.trace(call, x).run("numpy", x)
    np.testing.assert_array_equal(got, np.concatenate([2 * x, 4 * x], axis=1))
    np.testing.assert_array_equal(x, floats(16, 128))
