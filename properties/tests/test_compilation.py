"""The compilation property holds for the kernel, and fails for calls that no TPU would take."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import kernel
from properties import engines
from properties.cases.case import Bias, Blocks, Case, CaseError, Segments
from properties.claims import checks, compilation
from properties.engines import hardware
from properties.judging import programs
from properties.judging.targets import Target

KERNEL = Target.load("kernel:flash_attention")
FOR = {"generations": ["v5e"]}
CASE = Case(1, 1, 8, 128, 8, parameters=FOR)


def compiled(case=CASE, target=KERNEL):
    return checks.PROPERTIES["compilation"](case, target, "auto")


def target(around, strict=True):
    """The kernel with `around` applied to its o, without residuals."""

    def attend(*args, **options):
        return around(kernel.flash_attention(*args, **options))

    return replace(KERNEL, call=attend, residuals=None, strict=strict)


def through_kernel(body, **call):
    """A target whose o is passed through a kernel of `body`; not differentiable."""

    def around(o):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(o.shape, o.dtype), **call)(o)

    return replace(target(around), features=KERNEL.features - {"gradients", "bias_gradient"})


def message(result):
    assert result.failure is not None
    return result.failure.message


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": Bias("bfloat16", "normal"), "sm_scale": 0.3, "causal": True},
        {"dtype": "bfloat16", "parameters": FOR | {"x64": True, "precision": "highest"}},
        {"parameters": FOR | {"x64": True, "precision": "high"}, "sm_scale": 0.3},
        {
            "block_sizes": Blocks(8, 128, 128, 1),
            "segments": Segments("uint8", (((0, 8),),), (((0, 128),),)),
        },
    ],
)
def test_holds(changes):
    result = compiled(replace(CASE, **changes))
    assert (result.failure, result.skipped, result.refused) == (None, "", "")
    assert result.ran == ["compiled for v5e"]
    assert {each.output for each in result.verdicts} == {"lowered", "call", "exported"}


def test_each_generation_compiles_what_is_traced_for_it():
    """A kernel may choose its blocks by the memory of the TPU that it will run on."""
    seen = []

    def around(o):
        seen.append(pltpu.get_tpu_info().vmem_capacity_bytes // 2**20)
        return o

    case = replace(CASE, parameters={"generations": ["v4", "v5p"], "forward": True})
    result = compiled(case, target(around))
    assert (result.failure, result.ran) == (None, ["compiled for v4", "compiled for v5p"])
    assert seen == [16, 16, 64]  # the first twice


def test_no_array_is_made(monkeypatch):
    monkeypatch.delattr(Case, "arrays")
    bias = Bias("float32", "normal")
    parameters = {"generations": ["v4"], "forward": True}
    case = replace(CASE, q_len=8192, kv_len=8192, head_dim=512, bias=bias, parameters=parameters)
    assert compiled(case).failure is None


def test_blocks_that_mosaic_refuses_fail():
    """Three rows of eight: any interpreter takes them."""

    def copy(in_ref, out_ref):
        out_ref[...] = in_ref[...]

    block = pl.BlockSpec((1, 1, 3, 8), lambda i: (0, 0, i, 0))
    odd = through_kernel(copy, grid=(3,), in_specs=[block], out_specs=block)
    assert "divisible by 8" in message(compiled(target=odd))
    assert compiled(target=replace(odd, strict=False)).refused == "ValueError at lowering"


def test_product_that_is_less_precise_than_asked_for_fails():
    def square(in_ref, out_ref):
        x = in_ref[0, 0]
        out_ref[0, 0] = jax.lax.dot(x, x, precision=jax.lax.Precision.DEFAULT)

    squared = through_kernel(square)
    for precision, lacks in (("default", False), ("bfloat16", False), ("highest", True)):
        result = compiled(replace(CASE, parameters=FOR | {"precision": precision}), squared)
        assert (result.failure is not None) == lacks
    assert message(result) == "a product is of default precision, not highest"


def test_what_get_default_gives_is_compiled():
    case = replace(CASE, q_len=300, kv_len=256, parameters=FOR | {"get_default": True})
    assert compiled(case).failure is None

    class Tall(kernel.BlockSizes):
        @classmethod
        def get_default(cls, *shape):
            return cls(300, 256, 128, 1)

    class Failing(kernel.BlockSizes):
        @classmethod
        def get_default(cls, *shape):
            raise KeyError("shape")

    class Without:
        pass

    seen = []

    def spied(*args, **options):
        seen.append(options["block_sizes"])
        return kernel.flash_attention(*args, **options)

    assert compiled(case, replace(KERNEL, call=spied, block_sizes=Tall)).failure is None
    assert {blocks.block_q for blocks in seen} == {300}
    failing = compiled(case, replace(KERNEL, block_sizes=Failing))
    assert message(failing) == "get_default raised KeyError: 'shape'"
    without = compiled(case, replace(KERNEL, block_sizes=Without))
    assert without.skipped == "the target's BlockSizes has no get_default"
    unclaimed = compiled(case, replace(KERNEL, features=KERNEL.features - {"block_sizes"}))
    assert unclaimed.skipped == "kernel:flash_attention does not claim block_sizes"


def test_kernel_that_the_compiler_refuses_fails():
    def gather(in_ref, out_ref):
        out_ref[...] = jnp.sort(in_ref[...], axis=2)

    assert message(compiled(target=through_kernel(gather)))


@pytest.mark.parametrize(
    "ask",
    [
        lambda o: jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(o.shape, o.dtype), o),
        lambda o: jax.debug.print("{}", o[0, 0, 0, 0]) or o,
    ],
)
def test_host_callback_fails(ask):
    forward = replace(target(ask), features=KERNEL.features - {"gradients", "bias_gradient"})
    assert "asks the host" in message(compiled(target=forward))


def test_float64_fails():
    widened = target(lambda o: (o.astype("float64") * 2).astype(o.dtype))
    case = replace(CASE, parameters=FOR | {"x64": True})
    assert message(compiled(case, widened)) == "holds float64"
    # What other targets do around their kernels, a compiler can take.
    lowered = compiled(case, replace(widened, strict=False))
    assert lowered.failure is None
    assert lowered.ran
    # Without x64 mode the same call has no float64.
    with pytest.warns(UserWarning, match="float64"):
        assert compiled(target=widened).failure is None


def test_float64_that_is_spelled_by_chance_in_a_kernel_is_none():
    text = 'custom_call @tpu_custom_call(%0) {backend_config = "x<f64 \\"xf64"} : tensor<8xf32>'
    assert compilation._of_a_tpu(text, KERNEL).passed
    assert not compilation._of_a_tpu(text + " -> tensor<8xf64>", KERNEL).passed


def test_trace_that_differs_fails():
    calls = []

    def counted(o):
        calls.append(o)
        return o + len(calls)

    assert "another text" in message(compiled(target=target(counted)))


def test_trace_after_another_call_site_holds():
    """jax keeps a kernel's trace with where it was first called."""
    programs.outputs(replace(CASE, parameters={}), KERNEL, compilation.shapes(CASE))
    assert compiled(target=target(lambda o: o)).failure is None
    assert compiled().failure is None


def test_program_that_is_not_exported_whole_fails(monkeypatch):
    deserialize = jax.export.deserialize

    def changed(data):
        return replace(deserialize(data), out_avals=())

    monkeypatch.setattr(jax.export, "deserialize", changed)
    assert message(compiled()) == "comes back from jax.export with other out_avals"


BACKWARD = Blocks(128, 128, 128, 1, *(8192, 128, 128, 8192), *(128, 128, 128))
LARGE = Case(
    *(2, 1, 8192, 256, 128),
    block_sizes=BACKWARD,
    parameters={"generations": ["v4"], "too_large": ["block_q_major_dkv", "block_q_dkv"]},
)


def test_blocks_that_are_too_large_are_named():
    result = compiled(LARGE)
    assert (result.failure, result.skipped) == (None, "")
    # Without the parameter the same error is a fault.
    unexpected = replace(LARGE, parameters={"generations": LARGE.parameters["generations"]})
    assert "RESOURCE_EXHAUSTED" in message(compiled(unexpected))


def test_blocks_that_had_to_be_too_large_and_fit_fail():
    blocks = Blocks(8, 128, 128, 1)
    case = replace(CASE, block_sizes=blocks, parameters=FOR | {"too_large": ["block_q"]})
    assert message(compiled(case)) == "compiled for v5e: its blocks had to be too large"


def test_message_that_does_not_name_the_blocks_fails():
    named = "vmem exhausted: %flash_dq_block_q_8192_block_k_128"
    assert compilation._naming(named, "v5e", {"block_q_dq": 8192, "block_k_dq": 128}).passed
    # Part of a number is another number.
    for sizes in ({"block_q_dq": 819}, {"block_k_major": 128}):
        verdict = compilation._naming(named, "v5e", sizes)
        assert "is not named in: vmem exhausted" in verdict.message


def test_too_large_is_not_asked_of_other_targets():
    result = compiled(LARGE, replace(KERNEL, strict=False))
    assert "only the contract" in result.skipped


def test_without_libtpu_it_is_skipped(monkeypatch):
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    hardware.compile_only_device.cache_clear()
    try:
        result = compiled()
    finally:
        hardware.compile_only_device.cache_clear()
    assert "libtpu" in result.skipped
    assert result.failure is None


def test_what_a_tpu_runs_is_what_is_compiled(monkeypatch):
    """Mode tpu lowers for the attached device as compile_for does for one that is not there."""
    case = replace(CASE, parameters={})
    program = programs.outputs(case, KERNEL, compilation.shapes(case))
    lowered = []
    lower = engines.Program._lowered_for

    def recorded(self, device):
        lowered.append((device, lower(self, device)))
        return lowered[-1][1]

    monkeypatch.setattr(engines.Program, "_lowered_for", recorded)
    program.compile_for("v5e")
    device = hardware.compile_only_device("v5e")
    monkeypatch.setattr(jax, "devices", lambda platform: {"tpu": [device]}[platform])
    program._executable("tpu")
    (_, compiled_text), (attached, tpu_text) = lowered
    assert attached is device
    assert tpu_text.as_text() == compiled_text.as_text()


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "parameters.generations: got null; expected a list"),
        ({"generations": []}, "parameters.generations: is empty"),
        ({"generations": ["v3"]}, 'got "v3"; expected one of v4, v5e'),
        (FOR | {"x64": 1}, "parameters.x64: got 1"),
        (FOR | {"precision": "low"}, 'parameters.precision: got "low"'),
        (FOR | {"too_large": ["block_q"]}, "parameters.too_large"),
    ],
)
def test_unreadable_parameters(parameters, complaint):
    with pytest.raises(CaseError, match=complaint):
        compiled(replace(CASE, parameters=parameters))
