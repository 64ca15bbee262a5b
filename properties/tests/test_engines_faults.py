"""What the NumPy engine must not let pass, though an interpreter may."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties import engines

X = np.arange(20 * 128, dtype=np.float32).reshape(20, 128)
SCRATCH = pltpu.VMEM((8, 128), jnp.float32)


def rows(index=lambda i: (i, 0)):
    return pl.BlockSpec((8, 128), index)


def run(kernel, *args, mode="numpy", out=(20, 128), semantics=None, **options):
    if semantics is not None:
        options["compiler_params"] = pltpu.CompilerParams(dimension_semantics=semantics)
    options = {"grid": (3,), "in_specs": [rows()], "out_specs": rows(), **options}
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(out, jnp.float32), **options)
    return engines.trace(call, *args).run(mode, *args)


def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def test_unwritten_scratch_is_nan():
    def kernel(x_ref, o_ref, sum_ref):
        o_ref[...] = x_ref[...] + sum_ref[...]

    assert np.isnan(run(kernel, X, scratch_shapes=[SCRATCH])).all()


def test_unwritten_integer_scratch_is_the_farthest_value():
    def kernel(x_ref, o_ref, count_ref):
        o_ref[...] = x_ref[...] + count_ref[0, 0].astype(jnp.float32)

    got = run(kernel, X, scratch_shapes=[pltpu.SMEM((1, 1), jnp.int32)])
    np.testing.assert_array_equal(got, X + np.float32(-(2.0**31)))


def test_unwritten_output_is_nan():
    def kernel(x_ref, o_ref):
        o_ref[0:4, :] = x_ref[0:4, :]

    got = run(kernel, X)
    assert np.isnan(got[4:8]).all()
    np.testing.assert_array_equal(got[:4], X[:4])


def test_output_is_not_read_back_when_its_block_returns():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) < 2)
        def _start():
            o_ref[...] = x_ref[...]

        @pl.when(pl.program_id(0) == 2)
        def _again():
            o_ref[...] += x_ref[...]

    got = run(kernel, X, out_specs=rows(lambda i: (i % 2, 0)), out=(16, 128))
    assert np.isnan(got[:8]).all()
    np.testing.assert_array_equal(got[8:], X[8:16])


def test_padding_of_partial_blocks_is_nan_and_reaches_a_careless_sum():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.broadcast_to(x_ref[...].sum(0), (8, 128))

    got = run(kernel, X)
    np.testing.assert_array_equal(got[:8], np.broadcast_to(X[:8].sum(0), (8, 128)))
    assert np.isnan(got[16:]).all()


def test_padding_of_partial_blocks_does_not_reach_a_masked_sum():
    def kernel(x_ref, o_ref):
        row = pl.program_id(0) * 8 + lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        kept = jnp.where(row < 20, x_ref[...], 0)
        o_ref[...] = jnp.broadcast_to(kept.sum(0), (8, 128))

    got = run(kernel, X)
    np.testing.assert_array_equal(got[16:], np.broadcast_to(X[16:].sum(0), (4, 128)))


@pytest.mark.parametrize("shift", [1, -1])
def test_block_out_of_range(shift):
    with pytest.raises(engines.KernelFault, match=r"copy_kernel.*block \(-?\d, 0\).*\(20, 128\)"):
        run(copy_kernel, X, in_specs=[rows(lambda i: (i + shift, 0))])


def test_slice_out_of_range_names_kernel_step_and_line():
    def reads_beyond(x_ref, o_ref):
        start = pl.program_id(0) * 4
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[0:4, :] = x_ref[pl.ds(start, 4), :]

    with pytest.raises(engines.KernelFault) as caught:
        run(reads_beyond, X)
    message = str(caught.value)
    assert "reads_beyond" in message
    assert "grid step (2,)" in message
    assert "test_engines_faults.py" in message
    assert "8:12" in message


def test_index_out_of_range_does_not_wrap_around():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.broadcast_to(x_ref[pl.program_id(0) - 1, :], (8, 128))

    with pytest.raises(engines.KernelFault, match="index -1"):
        run(kernel, X)


def running_sum(x_ref, o_ref, sum_ref):
    """Wrong on a parallel axis: a step needs what the one before it left."""

    @pl.when(pl.program_id(0) == 0)
    def _start():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += x_ref[...]
    o_ref[...] = sum_ref[...]


def test_parallel_axis_that_depends_on_an_earlier_step_gives_nan():
    x = np.ones((24, 128), np.float32)
    options = {"scratch_shapes": [SCRATCH], "out": (24, 128)}
    in_order = run(running_sum, x, semantics=("arbitrary",), **options)
    np.testing.assert_array_equal(in_order[::8, 0], [1, 2, 3])
    assert np.isnan(run(running_sum, x, semantics=("parallel",), **options)).any()


def test_parallel_axis_that_shares_an_output_block_gives_nan():
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    x = np.ones((24, 128), np.float32)
    options = {"out_specs": rows(lambda i: (0, 0)), "out": (8, 128)}
    assert (run(kernel, x, semantics=("arbitrary",), **options) == 3).all()
    assert np.isnan(run(kernel, x, semantics=("parallel",), **options)).all()


def test_scratch_survives_below_the_parallel_axes():
    """A parallel axis inside a sequential one: the same coordinate may come back."""

    def kernel(x_ref, o_ref, sums_ref):
        column = pl.program_id(1)

        @pl.when(pl.program_id(0) == 0)
        def _start():
            sums_ref[column] = jnp.zeros((8, 128), jnp.float32)

        sums_ref[column] += x_ref[...]
        o_ref[...] = sums_ref[column]

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    got = run(
        kernel,
        np.ones((24, 256), np.float32),
        grid=(3, 2),
        in_specs=[block],
        out_specs=block,
        out=(24, 256),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32)],
        semantics=("arbitrary", "parallel"),
    )
    np.testing.assert_array_equal(got[::8, ::128], [[1, 1], [2, 2], [3, 3]])


def copying(body):
    def kernel(x_ref, o_ref, buffer, semaphore):
        body(pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer, semaphore), buffer, o_ref)

    return kernel


def run_copy(body):
    options = {
        "grid": (),
        "in_specs": [pl.BlockSpec(memory_space=pl.ANY)],
        "out_specs": pl.BlockSpec(memory_space=pltpu.VMEM),
        "scratch_shapes": [SCRATCH, pltpu.SemaphoreType.DMA],
    }
    return run(copying(body), X, out=(8, 128), **options)


def test_copy_read_before_it_arrives_is_nan():
    def body(copy, buffer, o_ref):
        copy.start()
        o_ref[...] = buffer[...]
        copy.wait()

    assert np.isnan(run_copy(body)).all()


def test_copy_never_awaited():
    def body(copy, buffer, o_ref):
        copy.start()
        o_ref[...] = jnp.zeros_like(o_ref)

    with pytest.raises(engines.KernelFault, match="never awaited"):
        run_copy(body)


def test_copy_never_started():
    def body(copy, buffer, o_ref):
        copy.wait()
        o_ref[...] = buffer[...]

    with pytest.raises(engines.KernelFault, match="never started"):
        run_copy(body)


def test_unsupported_names_operation_and_kernel():
    def random_kernel(x_ref, o_ref):
        pltpu.prng_seed(0)
        o_ref[...] = x_ref[...]

    with pytest.raises(engines.Unsupported, match=r"prng_seed.*random_kernel"):
        run(random_kernel, X)
