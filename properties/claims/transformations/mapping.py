"""Transformations that lay calls side by side: vmap, and shard_map over devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from properties import engines
from properties.cases.case import Arrays, CaseError
from properties.claims.transformations.table import attention, transformation, with_gradients
from properties.judging.calls import Calls
from properties.judging.judge import judge_backward, judge_forward

SIZE = 2
"""Slices along a mapped axis."""


@transformation
def vmap(calls: Calls) -> None:
    """vmap(f)([x, y, ...]) = [f(x), f(y), ...], whichever arguments are mapped along which axis.

    `parameters["axes"]` gives the axis of each mapped array, by name; the others are shared.
    `levels` is 1, or 2 for a vmap of a vmap. `gradient` is "inside" (vmap of the derivative) or
    "around" (derivative of the vmap; then everything is mapped).
    """
    axes, levels = _axes(calls), calls.integer("levels", 1, 2)
    around = calls.choice("gradient", ("inside", "around")) == "around"
    slices = _slices(calls, tuple(axes), SIZE**levels)
    in_axes = [axes.get(name) for name in Arrays._fields]
    outer = [None if axis is None else 0 for axis in in_axes]

    def mapped(function: Any, count: int) -> Any:
        function = jax.vmap(function, in_axes=in_axes[:count])
        return jax.vmap(function, in_axes=outer[:count]) if levels == 2 else function

    if around:
        function = with_gradients(calls, mapped(attention(calls), 6))
    else:
        function = mapped(with_gradients(calls, attention(calls)), 7)
    stacked = [_stacked(slices, name, axes.get(name), levels) for name in Arrays._fields]
    got = calls.run_function(function, *stacked)
    for number, each in enumerate(slices):
        # The results of an inner vmap are stacked along its axis 0.
        place = np.unravel_index(number, (SIZE,) * levels)
        found = {
            name: array[place] if not around else _slice(array, place, axes.get(name[1:], 0))
            for name, array in got.items()
        }
        expected = each.run()
        wanted = {name: expected[name] for name in found}
        each.repeats(found, wanted, each.truth, reshaped=True)


@transformation
def shard_map(calls: Calls) -> None:
    """shard_map(f)(x) = f(x), with batch and heads divided over devices.

    The kernel of this project can also be traced with jax's check of what varies over the mesh.
    `parameters["shards"]` is [parts of the batch, parts of the heads], each 1 or 2.
    """
    shards = calls.parameters.get("shards")
    if not isinstance(shards, list) or len(shards) != 2 or not all(n in (1, 2) for n in shards):
        raise CaseError(f"parameters.shards: got {shards!r}; expected two numbers, each 1 or 2")
    if calls.case.batch % shards[0] or calls.case.heads % shards[1]:
        raise CaseError(f"parameters.shards: {shards} do not divide batch and heads")
    count = shards[0] * shards[1]
    if len(jax.devices()) < count:
        calls.stop(f"needs {count} devices")
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(shards), ("batch", "heads"))
    specs = [
        PartitionSpec("batch") if name.endswith("ids") else PartitionSpec("batch", "heads")
        for name in Arrays._fields
    ]

    def divided(*, check_vma: bool) -> Any:
        return jax.shard_map(
            with_gradients(calls, attention(calls)),
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=PartitionSpec("batch", "heads"),
            check_vma=check_vma,
        )

    def traced() -> Any:
        if calls.target.strict:
            jax.eval_shape(divided(check_vma=True), *calls.arrays)
        # jax's interpreters of kernels run no other.
        return engines.trace(divided(check_vma=False), *calls.arrays)

    got = calls.attempt(traced, *calls.arrays)
    truth = calls.truth()
    with calls.result.judging():
        judge_forward(calls.result, calls.target, truth, got)
        judge_backward(calls.result, truth, calls.arrays, got, calls.of)


def _axes(calls: Calls) -> dict[str, int]:
    """The mapped arrays and their axes, of those that the case has."""
    axes = calls.parameters.get("axes")
    if not isinstance(axes, dict) or not all(
        name in Arrays._fields and type(axis) is int and -4 <= axis <= 2
        for name, axis in axes.items()
    ):
        raise CaseError(f"parameters.axes: got {axes!r}; expected axes -4 to 2 by name of array")
    present = {name: n for name, n in axes.items() if getattr(calls.arrays, name) is not None}
    if not present:
        calls.stop("no mapped array is present")
    return present


def _slices(calls: Calls, mapped: tuple[str, ...], count: int) -> list[Calls]:
    """The calls that are laid side by side; mapped arrays differ in each, the others are shared."""
    slices = [
        calls.with_arrays(**{name: _variant(getattr(calls.arrays, name), n) for name in mapped})
        for n in range(count)
    ]
    if calls.target.masked_rows == "any":
        # A shared cotangent must be one for all of them.
        seen = np.logical_and.reduce([each.sees for each in slices])
        slices = [
            each.with_arrays(do=np.where(seen[..., None], each.arrays.do, 0)) for each in slices
        ]
    return slices


def _variant(array: np.ndarray, number: int) -> np.ndarray:
    """Other numbers of the same kind: the same, shifted along the sequence."""
    return np.roll(array, number, axis=1 if array.ndim == 2 else 2)


def _stacked(slices: list[Calls], name: str, axis: int | None, levels: int) -> Any:
    arrays = [getattr(each.arrays, name) for each in slices]
    if axis is None:
        return arrays[0]
    if levels == 1:
        return np.stack(arrays, axis)
    halves = (arrays[:SIZE], arrays[SIZE:])
    return np.stack([np.stack(half, axis) for half in halves])


def _slice(array: np.ndarray, place: tuple[Any, ...], axis: int) -> np.ndarray:
    """One slice of a gradient of a vmap, which is stacked as its primal is."""
    outer, inner = place[:-1], place[-1]
    return np.take(array[outer], inner, axis=axis)
