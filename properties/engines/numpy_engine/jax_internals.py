"""The one module that knows how jax lays out what it has traced.

Everything here is about jax, nothing about how a program is run: jaxprs, the parameters of
`pallas_call`, and the indexing of references are turned into the plain data classes below. Names
and layouts from jax's private modules are used nowhere else. They hold for jax 0.10 to 0.12; when
a later jax moves them, importing this module (or `check`) fails, and the NumPy mode is off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax._src import source_info_util
from jax._src.state.indexing import NDIndexer
from jax._src.state.types import (
    AbstractRef,
    AccumEffect,
    BitcastTransform,
    ReshapeTransform,
    TransformedRef,
    TransposeTransform,
    WriteEffect,
)
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from properties.engines.errors import Unsupported


@dataclass(frozen=True)
class Body:
    """A jaxpr: values for its constants, then inputs, equations and outputs."""

    constants: list[tuple[Any, Any]]
    inputs: list[Any]
    equations: Sequence[Any]
    outputs: list[Any]

    def used(self) -> set[Any]:
        """The variables that some equation or output reads."""
        atoms = [atom for equation in self.equations for atom in equation.invars]
        return {atom for atom in [*atoms, *self.outputs] if not is_literal(atom)}


def body(jaxpr: Any) -> Body:
    """Opens a jaxpr. One without constants of its own takes them as its first inputs."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr
    values = list(getattr(jaxpr, "consts", ()))
    if values:
        constants = list(zip(inner.constvars, values, strict=True))
        return Body(constants, list(inner.invars), inner.eqns, list(inner.outvars))
    return Body([], [*inner.constvars, *inner.invars], inner.eqns, list(inner.outvars))


def where(source_info: Any) -> str:
    """The file, line and function of the program under test that an equation comes from."""
    return source_info_util.summarize(source_info)


def scoped_body(jaxpr: Any) -> Body:
    """Opens the jaxpr of a `run_scoped`, whose equation passes in even what it closes over."""
    return Body([], [*jaxpr.constvars, *jaxpr.invars], jaxpr.eqns, list(jaxpr.outvars))


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a number written into the jaxpr."""
    return isinstance(atom, jex.Literal)


def is_reference(aval: Any) -> bool:
    """Whether an abstract value is a reference to memory, as kernels get them."""
    return isinstance(aval, AbstractRef)


def is_semaphore(aval: Any) -> bool:
    """Whether a reference holds semaphores."""
    return aval.memory_space == pltpu.SEMAPHORE


# Equations that only wrap a jaxpr, and the parameter that holds it.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}


def scan_split(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's inputs are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


@dataclass(frozen=True)
class Span:
    """`size` elements of a dimension, from `start`, every `stride`-th."""

    start: Any
    size: Any
    stride: int


@dataclass(frozen=True)
class View:
    """A reference and the steps that lead to the part meant.

    A step is a tuple of indices (a `Span`, or an operand or int that selects one element), or
    ("bitcast", dtype), ("reshape", shape), ("transpose", permutation).
    """

    reference: Any
    steps: list[tuple]


def access(params: dict[str, Any], operands: list[Any]) -> tuple[View, list[Any]]:
    """Splits a `get`, `swap` or `addupdate`: what part of which reference, and the values."""
    reference, *rest = operands
    count = params["tree"].num_leaves
    values, indices = rest[: len(rest) - count], rest[len(rest) - count :]
    return View(reference, _steps(params["tree"].unflatten(indices))), values


def masked_access(params: dict[str, Any], operands: list[Any]) -> tuple[View, Any, Any]:
    """Splits a `masked_load` (view, mask, other) or `masked_swap` (view, mask, value)."""
    reference, transforms, *pair = params["args_tree"].unflatten(operands)
    return View(reference, _steps(transforms)), pair[0], pair[1]


def copy_access(params: dict[str, Any], operands: list[Any]) -> tuple[View, View, View]:
    """Splits a `dma_start` or `dma_wait`: source, destination, semaphore."""
    source, destination, semaphore, remote, device = params["tree"].unflatten(operands)
    if remote is not None or device is not None or params.get("add"):
        raise Unsupported("a copy to another device, or one that adds")
    return _view(source), _view(destination), _view(semaphore)


def semaphore_access(params: dict[str, Any], operands: list[Any]) -> tuple[View, list[Any]]:
    """Splits a `semaphore_signal`, `semaphore_wait` or `semaphore_read`: which, and the rest."""
    reference, transforms, *rest = params["args_tree"].unflatten(operands)
    return View(reference, _steps(transforms)), rest


def _view(reference: Any) -> View:
    if isinstance(reference, TransformedRef):
        return View(reference.ref, _steps(reference.transforms))
    return View(reference, [])


def _steps(transforms: Any) -> list[tuple]:
    steps: list[tuple] = []
    for transform in transforms:
        match transform:
            case NDIndexer():
                if transform.is_dynamic_size:
                    raise Unsupported("a slice of a reference whose size is not static")
                if transform.int_indexer_shape:
                    raise Unsupported("a reference indexed by an array")
                steps.append(tuple(_index(index) for index in transform.indices))
            case BitcastTransform():
                steps.append(("bitcast", np.dtype(transform.dtype)))
            case ReshapeTransform():
                steps.append(("reshape", transform.shape))
            case TransposeTransform():
                steps.append(("transpose", transform.permutation))
            case _:
                raise Unsupported(f"a reference seen through {type(transform).__name__}")
    return steps


def _index(index: Any) -> Any:
    return Span(index.start, index.size, index.stride) if isinstance(index, pl.Slice) else index


@dataclass(frozen=True)
class Window:
    """How one operand of a kernel is cut into blocks.

    `blocks` holds the block's length per dimension, None where the dimension is squeezed away.
    `element` says per dimension that the index map counts elements, not blocks. A `whole` operand
    stays in main memory and is never cut.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: tuple[int | None, ...]
    element: tuple[bool, ...]
    whole: bool
    name: str


@dataclass(frozen=True)
class KernelCall:
    """The parameters of a `pallas_call`.

    Its operands come in the order: dynamic grid bounds, prefetched scalars, inputs. The kernel
    takes prefetched scalars, inputs, outputs, scratch. The index maps take the grid step and the
    prefetched scalars. `aliases` maps an operand (counted after the grid bounds) to an output;
    `written` holds the positions of the kernel's references that it writes to.
    """

    name: str
    grid: tuple[int | None, ...]
    parallel: tuple[bool, ...]
    mapped: frozenset[int]
    prefetched: int
    inputs: tuple[Window, ...]
    outputs: tuple[Window, ...]
    index_maps: list[Body]
    scratch: list[Any]
    aliases: dict[int, int]
    kernel: Body
    written: frozenset[int]


def kernel_call(equation: Any) -> KernelCall:
    """Reads a `pallas_call` equation."""
    params = equation.params
    mapping = params["grid_mapping"]
    jaxpr = params["jaxpr"]
    name = params.get("name") or jaxpr.debug_info.func_name
    if any(is_reference(atom.aval) for atom in equation.invars):
        raise Unsupported(f"kernel {name}: references passed in from outside")
    if params.get("mesh") is not None:
        raise Unsupported(f"kernel {name}: a kernel over a device mesh")
    windows = tuple(_window(block) for block in mapping.block_mappings)
    kernel = body(jaxpr)
    return KernelCall(
        name=name,
        grid=tuple(size if isinstance(size, int) else None for size in mapping.grid),
        parallel=_parallel(params["compiler_params"], len(mapping.grid), mapping.vmapped_dims),
        mapped=frozenset(mapping.vmapped_dims),
        prefetched=mapping.num_index_operands,
        inputs=windows[: mapping.num_inputs],
        outputs=windows[mapping.num_inputs :],
        index_maps=[body(block.index_map_jaxpr) for block in mapping.block_mappings],
        scratch=list(mapping.scratch_avals),
        aliases=dict(params["input_output_aliases"]),
        kernel=kernel,
        written=_written(jaxpr.effects, kernel.inputs),
    )


def _written(effects: Any, inputs: list[Any]) -> frozenset[int]:
    """Which of a kernel's references it writes to, told by its effects."""
    targets = {effect.input for effect in effects if isinstance(effect, WriteEffect | AccumEffect)}
    return frozenset(number for number, variable in enumerate(inputs) if variable in targets)


def _window(block: Any) -> Window:
    blocks: list[int | None] = []
    for dimension in block.block_shape:
        match dimension:
            case pl.Squeezed():
                blocks.append(None)
            case pl.Blocked(size) | pl.Element(size, (0, 0)):
                blocks.append(size)
            case _:
                raise Unsupported(f"{block.origin}: a block dimension of {dimension}")
    if getattr(block, "transforms", ()):
        raise Unsupported(f"{block.origin}: a block seen through a transform")
    return Window(
        shape=tuple(block.array_aval.shape),
        dtype=np.dtype(block.array_aval.dtype),
        blocks=tuple(blocks),
        element=tuple(isinstance(dimension, pl.Element) for dimension in block.block_shape),
        whole=block.block_aval.memory_space in (pl.ANY, pltpu.HBM),
        name=str(block.origin),
    )


def _parallel(compiler_params: Any, axes: int, mapped: Sequence[int]) -> tuple[bool, ...]:
    """Which grid axes the kernel declares parallel; axes added by `vmap` always are."""
    declared = getattr(compiler_params, "dimension_semantics", None)
    if declared is None:
        return (False,) * axes
    remaining = iter(getattr(axis, "value", axis) != "arbitrary" for axis in declared)
    return tuple(axis in mapped or next(remaining) for axis in range(axes))
