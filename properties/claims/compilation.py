"""Whether a call compiles for TPUs, ahead of time and without one: the contract says which must."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.export
from jax import lax

from properties import engines
from properties.cases import records
from properties.cases.case import Arrays, Bias, Case, CaseError
from properties.judging import programs
from properties.judging.judge import differentiated
from properties.judging.result import REFUSALS, Result
from properties.judging.targets import Target
from properties.judging.verdict import Verdict, raised

PRECISIONS = {
    "default": lax.Precision.DEFAULT,
    "high": lax.Precision.HIGH,
    "highest": lax.Precision.HIGHEST,
    "bfloat16": lax.Precision.DEFAULT,
    "tensorfloat32": lax.Precision.HIGH,
    "float32": lax.Precision.HIGHEST,
}
"""What `jax.default_matmul_precision` may be told, and the least precision that it asks for."""

_FROM_LOWEST = tuple(lax.Precision)

DESIGNATED: dict[str, tuple[Case, str]] = {
    # Several of the largest default tiles, and of the next smaller ones, each with a tail.
    "long and narrow": (Case(1, 1, 1040, 1300, 64, causal=True), "default"),
    "long and wide": (Case(1, 1, 1040, 1300, 512, "bfloat16", causal=True), "default"),
    # The precisions between the lowest and the highest, which not every compiler knows.
    "high float32": (Case(1, 1, 128, 128, 8), "high"),
    "highest bfloat16": (Case(1, 1, 128, 128, 8, "bfloat16"), "highest"),
    "largest": (
        Case(1, 1, 8192, 8192, 1024, "bfloat16", bias=Bias("float32", "normal")),
        "default",
    ),
}
"""Cases that must compile though they are rarely drawn, and the precision of each."""

LEAST_MEMORY = "v4"
"""The TPU with the least on-chip memory for a kernel."""

_BIAS = Bias("float32", "normal")
_GET_DEFAULT = {"get_default": True}
TIGHT: dict[str, Case] = {
    "long, with a bias": Case(1, 1, 1024, 1024, 64, "bfloat16", bias=_BIAS),
    "long, one key": Case(1, 1, 3000, 1, 64, "bfloat16"),
    "wide, few queries": Case(1, 1, 16, 600, 1000, bias=_BIAS),
    "wide, few queries, bfloat16": Case(1, 1, 16, 1024, 1000, "bfloat16", bias=_BIAS),
    "wide, one key": Case(1, 1, 2048, 1, 1000),
    "wide, one key, bfloat16": Case(1, 1, 3000, 1, 1000, "bfloat16"),
    "wide, one key, more memory": Case(1, 1, 3000, 1, 1000, parameters={"generations": ["v5p"]}),
    "wide and long": Case(1, 1, 2048, 1040, 1000, "bfloat16"),
    "get_default, long": Case(1, 1, 8192, 8192, 64, parameters=_GET_DEFAULT),
    "get_default, wide": Case(1, 1, 8192, 8192, 257, bias=_BIAS, parameters=_GET_DEFAULT),
    # Whole tiles that sizes beside 256, 384 and 512 divide, which are no blocks.
    **{
        f"get_default, {tiles} tiles": Case(
            *(1, 1, 8, 128 * tiles, 8), parameters=_GET_DEFAULT | {"forward": True}
        )
        for tiles in (257, 383, 385, 511, 513)
    },
}
"""Shapes for which other blocks than the default ones, or those of `get_default`, would not fit the
least memory (or what a parameter names), or not be whole tiles."""

# What a host is asked through while a TPU computes.
_HOST = re.compile(
    r"stablehlo\.(?:send|recv|infeed|outfeed)\b|custom_call @\"?[\w.]*callback[\w.]*"
)
# What a compiler's message begins with where memory does not suffice.
_EXHAUSTED = "RESOURCE_EXHAUSTED"
_FLOAT64 = re.compile(r"[x<]f64\b")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def compilation(case: Case, target: Target, mode: str) -> Result:
    """A call compiles for each TPU generation in `case.parameters["generations"]`.

    Compiled is the program that the gradients property runs, or the outputs property where the
    blocks are for the forward alone or `parameters["forward"]` says so: what `--mode tpu` would
    run, traced where the generation is known. Its kernels hold no float64, those of float32 compute
    with the matmul precision asked for, it asks no host, two traces of it lower to the same text,
    and `jax.export` gives it away and takes it back.
    Blocks that are chosen for the caller always compile, those too that `BlockSizes.get_default`
    gives, which `parameters["get_default"]` (bool) asks for; a target that is not held to the whole
    contract may need more memory than there is, which is counted as refused. Of explicit blocks
    whose `parameters["too_large"]` lists fields, the compiler says that they do not fit its memory,
    and its message holds the names and values of these fields.

    `parameters["x64"]` (bool) and `precision` (one of `PRECISIONS`) set what jax has under these
    names while the call is traced and compiled. No array is made, so that shapes may be of any
    size, and nothing is run, whatever `mode` is.
    """
    result = Result("compilation", case, mode)
    if records.boolean(case.parameters.get("get_default", False), "parameters.get_default"):
        try:
            case = replace(case, block_sizes=target.default_blocks(case))
        # It is the target's, and whatever it raises is the finding.
        except Exception as error:
            result.verdicts.append(raised(error, "get_default"))
            return result
        if case.block_sizes is None:
            result.skipped = "the target's BlockSizes has no get_default"
            return result
    generations = _generations(case)
    too_large = _too_large(case)
    forward = records.boolean(case.parameters.get("forward", False), "parameters.forward")
    of = () if forward else differentiated(case, target)
    result.skipped = target.unclaimed(case) or ""
    if too_large and not target.strict:
        result.skipped = "only the contract of the kernel names blocks that are too large"
    if result.skipped:
        return result
    with _settings(case):
        try:
            # Together, so that what jax notes of where a kernel was called is the same.
            again, *traced = (
                _trace(case, target, of, generation)
                for generation in (generations[0], *generations)
            )
        except engines.Unsupported as error:
            result.skipped = str(error)
            return result
        except Exception as error:
            _record(result, target, error, "the call")
            return result
        try:
            result.verdicts += map(_in_32_bits, traced)
            if target.strict and case.dtype == "float32":
                result.verdicts += (_as_precise(case, program) for program in traced)
            if result.failure is not None:
                return result
            result.verdicts += _lowered(traced[0], again, generations[0], target)
            for generation, program in zip(generations, traced, strict=True):
                result.ran.append(f"compiled for {generation}")
                verdict = _compiled(program, generation, too_large)
                if not target.strict and _EXHAUSTED in verdict.message:
                    result.refused = f"needs more memory than {generation} has"
                    return result
                result.verdicts.append(verdict)
            result.verdicts.append(_exported(again))
        except engines.Unsupported as error:
            result.skipped = str(error)
        # What Pallas says of a kernel that it cannot lower is like what the call itself says.
        except Exception as error:
            _record(result, target, error, "lowering")
    return result


def shapes(case: Case) -> Arrays:
    """The arrays of a case, but for their elements."""
    rows = (case.batch, case.heads)
    q = jax.ShapeDtypeStruct((*rows, case.q_len, case.head_dim), case.dtype)
    kv = jax.ShapeDtypeStruct((*rows, case.kv_len, case.head_dim), case.dtype)
    ab = q_ids = kv_ids = None
    if case.bias is not None:
        ab = jax.ShapeDtypeStruct((*rows, case.q_len, case.kv_len), case.bias.dtype)
    if case.segments is not None:
        q_ids = jax.ShapeDtypeStruct((case.batch, case.q_len), case.segments.dtype)
        kv_ids = jax.ShapeDtypeStruct((case.batch, case.kv_len), case.segments.dtype)
    # Only their shapes are looked at.
    return Arrays(*(q, kv, kv, ab, q_ids, kv_ids, q))  # type: ignore[arg-type]


def _generations(case: Case) -> list[str]:
    given = records.items(case.parameters.get("generations"), "parameters.generations")
    if not given:
        raise CaseError("parameters.generations: is empty; expected at least one generation")
    return [records.choice(each, "parameters.generations", engines.TOPOLOGIES) for each in given]


def _too_large(case: Case) -> dict[str, int]:
    """The fields that a compiler's message must name, with their values."""
    names = records.items(case.parameters.get("too_large", []), "parameters.too_large")
    given = {} if case.block_sizes is None else case.block_sizes.fields()
    return {name: given[records.choice(name, "parameters.too_large", given)] for name in names}


@contextlib.contextmanager
def _settings(case: Case) -> Iterator[None]:
    x64 = records.boolean(case.parameters.get("x64", False), "parameters.x64")
    precision = case.parameters.get("precision", "default")
    records.choice(precision, "parameters.precision", PRECISIONS)
    with jax.enable_x64(x64), jax.default_matmul_precision(precision):
        yield


def _record(result: Result, target: Target, error: Exception, during: str) -> None:
    if isinstance(error, REFUSALS) and not target.strict:
        result.refused = f"{type(error).__name__} at {during}"
    else:
        result.verdicts.append(raised(error, during))


def _trace(case: Case, target: Target, of: tuple[str, ...], generation: str) -> Any:
    """A new trace of the program for a TPU generation, which shares nothing with an earlier one."""
    jax.clear_caches()
    arrays = shapes(case)
    with engines.traced_for(generation):
        if of and (case.block_sizes is None or case.block_sizes.backward):
            function = programs.backward_function(case, target, of)
            return engines.trace(function, *programs.inputs(arrays), arrays.do)
        return engines.trace(programs.forward_function(case, target), *programs.inputs(arrays))


def _lowered(program: Any, again: Any, generation: str, target: Target) -> list[Verdict]:
    """The verdicts on what a compiler is given, by two traces of the same."""
    text = program.lower_for(generation).as_text()
    same = again.lower_for(generation).as_text() == text
    repeated = Verdict("lowered", "" if same else "is another text when the call is traced again")
    return [_of_a_tpu(text, target), repeated]


def _exported(program: Any) -> Verdict:
    exported = program.export()
    back = jax.export.deserialize(exported.serialize())
    for part in ("in_avals", "out_avals"):
        # Shapes and dtypes: the mesh that says which TPU it is traced for is not kept by jax 0.10.
        before, after = (
            [(each.shape, each.dtype) for each in getattr(of, part)] for of in (exported, back)
        )
        if before != after:
            return Verdict("exported", f"comes back from jax.export with other {part}")
    for part in ("platforms", "mlir_module_serialized"):
        if getattr(back, part) != getattr(exported, part):
            return Verdict("exported", f"comes back from jax.export with other {part}")
    return Verdict("exported")


def _of_a_tpu(text: str, target: Target) -> Verdict:
    """The verdict on a lowered program: a TPU has no float64, and waits for a host's answer.

    Around its kernels a target that is not held to the whole contract may have float64: with x64 a
    number in plain JAX is that until it is cast, and the compiler takes it away.
    """
    if found := _HOST.search(text):
        return Verdict("lowered", f"asks the host: {found[0]}")
    # Kernels are strings in it, in an encoding that may spell anything.
    if target.strict and _FLOAT64.search(_QUOTED.sub("", text)):
        return Verdict("lowered", "holds float64")
    return Verdict("lowered")


def _in_32_bits(program: Any) -> Verdict:
    """The verdict on kernels that compute with vectors of 64 bits, which no TPU has.

    Its compiler must not see them: it ends the process, and with it all that was found.
    """
    for kernel in engines.kernels(program.jaxpr):
        for equation in engines.equations(kernel.params["jaxpr"]):
            for aval in (variable.aval for variable in equation.outvars):
                if getattr(aval, "shape", ()) and aval.dtype.itemsize > 4:
                    wide = f"{aval.dtype.name}{list(aval.shape)}"
                    return Verdict("lowered", f"a kernel computes with {wide}")
    return Verdict("lowered")


def _as_precise(case: Case, program: Any) -> Verdict:
    """The verdict on the products of kernels whose operands are all float32: none reads them with
    less precision than the caller asks jax for. No engine on a CPU rounds them, so only a TPU would
    show it in results.
    """
    name = case.parameters.get("precision", "default")
    least = _FROM_LOWEST.index(PRECISIONS[name])
    for kernel in engines.kernels(program.jaxpr):
        for equation in engines.equations(kernel.params["jaxpr"]):
            if equation.primitive.name == "dot_general":
                read_with = equation.params["precision"] or _FROM_LOWEST[:1]
                if min(map(_FROM_LOWEST.index, read_with)) < least:
                    found = read_with[0].name.lower()
                    return Verdict("lowered", f"a product is of {found} precision, not {name}")
    return Verdict("lowered")


def _compiled(program: Any, generation: str, too_large: dict[str, int]) -> Verdict:
    """The verdict on compiling for one generation."""
    try:
        program.compile_for(generation)
    # A compiler's error has no type of its own, and every one is the finding.
    except Exception as error:
        if not too_large or _EXHAUSTED not in str(error):
            return raised(error, f"compiling for {generation}")
        return _naming(str(error), generation, too_large)
    if too_large:
        return Verdict("call", f"compiled for {generation}: its blocks had to be too large")
    return Verdict("call")


def _naming(message: str, generation: str, too_large: dict[str, int]) -> Verdict:
    """The verdict on a compiler's message that memory is exhausted."""
    for field, size in too_large.items():
        # A kernel's name says which kernel it is; its blocks need not say so again.
        name = re.sub("_(dkv|dq)$", "", field)
        if not re.search(rf"{name}_{size}(?!\d)", message):
            head = " ".join(message.split())[:300]
            return Verdict("call", f"for {generation}, {name}_{size} is not named in: {head}")
    return Verdict("call")
