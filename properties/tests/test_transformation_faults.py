"""Each transformation holds for the kernel, and fails for a kernel with a fault that only it shows.

The faulty kernels are right when they are called plainly.
"""

import functools
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

import kernel
from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.claims import checks
from properties.claims.transformations import drawing
from properties.claims.transformations.passing import KINDS
from properties.judging.targets import Target

KERNEL = Target.load("kernel:flash_attention")
PLAIN = Case(2, 2, 9, 24, 8, sm_scale=0.5, bias=Bias("float32", "normal"))
SEGMENTS = Segments("int32", (((0, 4), (1, 5)),) * 2, (((0, 8), (1, 16)),) * 2)
TINY = 2.0**-20

Attend = Callable[..., Any]


def keeps_a_tracer() -> Attend:
    """A constant is made once and kept, though it belongs to the trace that was going on."""

    @functools.cache
    def one() -> Any:
        return jnp.ones(())

    return lambda q, *args, **options: kernel.flash_attention(q * one(), *args, **options)


def drops_dab_without_dq() -> Attend:
    """The bias gets its gradient only where q is differentiated too."""

    @jax.custom_vjp
    def pair(q: Any, ab: Any) -> Any:
        return q, ab

    def forward(q: Any, ab: Any) -> Any:
        return (q.value, ab.value), q.perturbed

    def backward(with_q: bool, gradients: Any) -> Any:
        dq, dab = gradients
        return dq, dab if with_q else jnp.zeros_like(dab)

    pair.defvjp(forward, backward, symbolic_zeros=True)

    def call(q: Any, k: Any, v: Any, ab: Any, *rest: Any, **options: Any) -> Any:
        q, ab = pair(q, ab)
        return kernel.flash_attention(q, k, v, ab, *rest, **options)

    return call


def has_an_effect() -> Attend:
    def call(q: Any, *args: Any, **options: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        one = jax.experimental.io_callback(lambda: jnp.float32(1), shape)
        return kernel.flash_attention(q * one, *args, **options)

    return call


def maps_the_first_keys_to_all() -> Attend:
    """Its batching rule takes all slices to have the same keys."""

    @custom_vmap
    def keys(k: Any) -> Any:
        return k

    @keys.def_vmap
    def first(size: int, mapped: Any, k: Any) -> Any:
        return jnp.broadcast_to(k[:1], k.shape), True

    def call(q: Any, k: Any, *args: Any, **options: Any) -> Any:
        return kernel.flash_attention(q, _with_plain_gradient(keys)(k), *args, **options)

    return call


def _with_plain_gradient(function: Attend) -> Attend:
    identity = jax.custom_vjp(function)
    identity.defvjp(lambda x: (function(x), None), lambda _, g: (g,))
    return identity


def multiplies_by_a_strong_1() -> Attend:
    """Under x64 the factor is float64, and so is what it makes of q."""
    return lambda q, *args, **options: kernel.flash_attention(
        q * jnp.asarray(np.float64(1)), *args, **options
    )


def fails_at_highest_precision() -> Attend:
    def call(*args: Any, **options: Any) -> Any:
        config: Any = jax.config
        if config.jax_default_matmul_precision == "highest":
            raise RuntimeError("Bad lhs type")
        return kernel.flash_attention(*args, **options)

    return call


def needs_a_jax_array() -> Attend:
    return lambda q, *args, **options: kernel.flash_attention(q.at[:].get(), *args, **options)


def reads_memory_as_it_lies() -> Attend:
    """An array that is not contiguous is read as if it were."""

    def call(q: Any, *args: Any, **options: Any) -> Any:
        if isinstance(q, np.ndarray) and not q.flags["C_CONTIGUOUS"]:
            q = np.ravel(q, order="K").reshape(q.shape)
        return kernel.flash_attention(q, *args, **options)

    return call


def narrows_weak_types() -> Attend:
    def call(q: Any, k: Any, v: Any, *args: Any, **options: Any) -> Any:
        if not getattr(q, "weak_type", False):
            return kernel.flash_attention(q, k, v, *args, **options)
        narrow = (x.astype(jnp.bfloat16) for x in (q, k, v))
        return kernel.flash_attention(*narrow, *args, **options)

    return call


def is_off_in_small_batches() -> Attend:
    def call(q: Any, *args: Any, **options: Any) -> Any:
        o = kernel.flash_attention(q, *args, **options)
        return o * 1.01 if q.shape[0] == 1 else o

    return call


def counts_runs() -> Attend:
    """Each run of a compiled program gives something else."""
    runs = iter(range(1000))

    def call(q: Any, *args: Any, **options: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        run = jax.experimental.io_callback(lambda: jnp.float32(next(runs)), shape)
        factor = jax.lax.stop_gradient(1 + TINY * run)
        return kernel.flash_attention(q, *args, **options) * factor

    return call


FAULTS: list[tuple[str, Callable[[], Attend], dict[str, Any]]] = [
    ("jit", keeps_a_tracer, {"form": "once"}),
    ("jit", keeps_a_tracer, {"form": "nested"}),
    ("jit", keeps_a_tracer, {"form": "donated"}),
    ("grad", drops_dab_without_dq, {"gradient_of": ["k", "ab"], "form": "grad"}),
    ("grad", drops_dab_without_dq, {"gradient_of": ["ab"], "form": "value_and_grad"}),
    ("checkpoint", has_an_effect, {"policy": "all"}),
    ("checkpoint", has_an_effect, {"policy": "dots_saveable"}),
    ("scan", keeps_a_tracer, {}),
    ("fori_loop", keeps_a_tracer, {}),
    ("cond", keeps_a_tracer, {}),
    ("x64", multiplies_by_a_strong_1, {}),
    ("matmul_precision", fails_at_highest_precision, {"precision": "highest"}),
    (
        "vmap",
        maps_the_first_keys_to_all,
        {"axes": {"k": 0}, "levels": 1, "gradient": "inside"},
    ),
    (
        "vmap",
        maps_the_first_keys_to_all,
        {"axes": {"q": 1, "k": -1}, "levels": 2, "gradient": "inside"},
    ),
    (
        "vmap",
        maps_the_first_keys_to_all,
        {
            "axes": dict.fromkeys(("q", "k", "v", "ab", "do"), 0),
            "levels": 1,
            "gradient": "around",
        },
    ),
    ("array_kind", needs_a_jax_array, {"kind": "numpy"}),
    ("array_kind", reads_memory_as_it_lies, {"kind": "fortran"}),
    ("weak_types", narrows_weak_types, {}),
    ("shard_map", is_off_in_small_batches, {"shards": [2, 2]}),
    ("ahead_of_time", counts_runs, {}),
]


@pytest.mark.parametrize(
    ("name", "fault", "parameters"),
    FAULTS,
    ids=[f"{name}-{fault.__name__}-{list(p.values())[:1]}" for name, fault, p in FAULTS],
)
def test_fault_is_caught(
    name: str, fault: Callable[[], Attend], parameters: dict[str, Any]
) -> None:
    holds = checks.PROPERTIES[f"transformations.{name}"]
    case = replace(PLAIN, parameters=parameters)
    faulty = replace(KERNEL, call=fault(), residuals=None)

    plainly = None if fault is counts_runs else checks.gradients(PLAIN, faulty, "auto").failure
    right, wrong = holds(case, KERNEL, "auto"), holds(case, faulty, "auto")

    assert plainly is None
    assert (right.failure, right.skipped) == (None, "")
    assert right.verdicts
    assert wrong.failure is not None


def test_other_bits_in_another_process_are_caught(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_process.py").write_text(
        "import os, kernel\n"
        "def attend(q, *args, **options):\n"
        "    return kernel.flash_attention(q * (1 + os.getpid() * 2**-22), *args, **options)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    holds = checks.PROPERTIES["transformations.another_process"]

    assert holds(PLAIN, KERNEL, "auto").failure is None
    wrong = holds(PLAIN, Target.load("of_process:attend"), "auto")
    assert wrong.failure is not None
    assert "another process" in wrong.failure.message


def test_target_without_a_name_is_not_looked_for_in_another_process() -> None:
    local = replace(KERNEL, call=lambda *args, **options: None)

    assert checks.PROPERTIES["transformations.another_process"](PLAIN, local, "auto").skipped


@pytest.mark.parametrize("masked_rows", ["zero", "any"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_variant_holds_for_the_kernel(dtype: str, masked_rows: Any) -> None:
    """Of a case with everything, in which some rows see no key."""
    segments = replace(SEGMENTS, kv=(((0, 24),),) * 2)
    case = replace(PLAIN, dtype=dtype, causal=True, segments=segments)
    target = replace(KERNEL, masked_rows=masked_rows)
    for name in drawing.DRAWN:
        for parameters in drawing.variants(name, case):
            result = checks.PROPERTIES[name](replace(case, parameters=parameters), target, "auto")
            assert (result.failure, result.skipped) == (None, ""), (name, parameters)


@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
def test_bits_do_not_depend_on_how_a_mapped_array_lies_in_memory(name: str) -> None:
    """With explicit blocks; a BLAS would sum in another order along an axis with gaps."""
    case = replace(
        PLAIN, batch=1, heads=1, q_len=24, bias=None, block_sizes=Blocks(24, 24, 24, 1, *[24] * 7)
    )
    for axis in (0, 1, 2, -1, -2):
        parameters = {"axes": {name: axis}, "levels": 1, "gradient": "inside"}
        result = checks.PROPERTIES["transformations.vmap"](
            replace(case, parameters=parameters), KERNEL, "numpy"
        )
        assert (result.failure, result.skipped) == (None, ""), axis


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_how_a_constant_lies_in_memory(kind: str) -> None:
    """Inner blocks of one query make products of vectors, which a BLAS treats by their strides."""
    blocks = Blocks(9, 24, 24, 1, *(8, 24, 24, 1), *(24, 24, 8))
    case = replace(PLAIN, block_sizes=blocks, parameters={"kind": kind})

    result = checks.PROPERTIES["transformations.array_kind"](case, KERNEL, "numpy")

    assert (result.failure, result.skipped) == (None, "")


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_hold_the_same_numbers(kind: str) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    np.testing.assert_array_equal(KINDS[kind](array), array)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("jit", {"form": "twice"}),
        ("checkpoint", {"policy": None}),
        ("vmap", {"axes": {"w": 0}, "levels": 1, "gradient": "inside"}),
        ("vmap", {"axes": {"q": 7}, "levels": 1, "gradient": "inside"}),
        ("shard_map", {"shards": [3, 1]}),
    ],
)
def test_parameters_that_make_no_sense_are_bad_input(name: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(CaseError, match=next(iter(parameters))):
        checks.PROPERTIES[f"transformations.{name}"](
            replace(PLAIN, parameters=parameters), KERNEL, "auto"
        )
