"""Slicing and gathering for the NumPy engine: values as XLA does it, references strictly.

On values XLA clamps or fills what lies outside. On references a TPU does neither: it reads or
writes someone else's memory, so leaving a reference is a fault.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from properties.engines.errors import KernelFault

Array = Any


def element(index: Array, extent: int) -> int:
    """`index` into a dimension of a reference; KernelFault outside it."""
    if not 0 <= index < extent:
        raise KernelFault(f"index {int(index)} is outside a dimension of {extent} elements")
    return int(index)


def span(start: Array, size: int, extent: int, stride: int = 1) -> slice:
    """A slice of a dimension of a reference; KernelFault if any of it lies outside."""
    start = int(start)
    stop = start + (size - 1) * stride + 1
    if start < 0 or stop > extent:
        raise KernelFault(f"slice {start}:{stop} leaves a dimension of {extent} elements")
    return slice(start, stop, stride)


def clamped(starts: Sequence[Array], sizes: Sequence[int], shape: Sequence[int]) -> tuple:
    """Slices of `sizes` at `starts`, moved inside `shape` as `lax.dynamic_slice` does."""
    return tuple(
        slice(first := min(max(int(start), 0), extent - size), first + size)
        for start, size, extent in zip(starts, sizes, shape, strict=True)
    )


def updated(value: Array, update: Array, *starts: Array) -> Array:
    """`lax.dynamic_update_slice`."""
    result = np.array(value)
    result[clamped(starts, np.shape(update), result.shape)] = update
    return result


def pad(value: Array, fill: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    """`lax.pad`: `config` holds (low, high, interior) per dimension; low and high may cut."""
    shape = [
        low + high + extent + max(extent - 1, 0) * interior
        for extent, (low, high, interior) in zip(value.shape, config, strict=True)
    ]
    result = np.full(shape, fill, value.dtype)
    source, target = [], []
    for extent, size, (low, _, interior) in zip(value.shape, shape, config, strict=True):
        step = interior + 1
        first = -(low // step) if low < 0 else 0
        kept = [n for n in (first, extent - 1) if 0 <= n < extent]
        last = min(kept[-1], (size - 1 - low) // step) if kept else -1
        source.append(slice(first, max(last + 1, first)))
        target.append(slice(low + first * step, max(low + last * step + 1, 0), step))
    result[tuple(target)] = value[tuple(source)]
    return result


def gather(operand: Array, indices: Array, spec: Any, sizes: Sequence[int], fill: Any) -> Array:
    """`lax.gather`. `fill` is None to clamp indices, else what out-of-range slices hold."""
    indices = np.asarray(indices, np.int64)
    batch = indices.shape[:-1]
    offsets = [d for d in range(operand.ndim) if d not in _dropped(spec)]
    rank = len(batch) + len(spec.offset_dims)
    batch_axes = [d for d in range(rank) if d not in spec.offset_dims]
    positions = _starts(operand.ndim, indices, batch_axes, rank, spec)
    limits = np.asarray(operand.shape) - np.asarray(sizes)
    valid = np.ones((1,) * rank, bool)
    for d in spec.start_index_map:
        valid = valid & (positions[d] >= 0) & (positions[d] <= limits[d])
        positions[d] = np.clip(positions[d], 0, limits[d])
    for d, axis in zip(offsets, spec.offset_dims, strict=True):
        positions[d] = positions[d] + _along(np.arange(sizes[d]), axis, rank)
    found = operand[tuple(np.broadcast_arrays(*positions))] if positions else operand
    return found if fill is None else np.where(valid, found, np.asarray(fill, operand.dtype))


def _dropped(spec: Any) -> set[int]:
    return {*spec.collapsed_slice_dims, *spec.operand_batching_dims}


def _starts(ndim: int, indices: Array, batch_axes: Sequence[int], rank: int, spec: Any) -> list:
    """Where each slice starts, per operand dimension, laid out along the result's batch axes."""

    def spread(values: Array) -> Array:
        shape = [1] * rank
        for axis, size in zip(batch_axes, values.shape, strict=True):
            shape[axis] = size
        return values.reshape(shape)

    starts: list[Array] = [np.zeros((1,) * rank, np.int64) for _ in range(ndim)]
    for column, d in enumerate(spec.start_index_map):
        starts[d] = spread(indices[..., column])
    pairs = zip(spec.operand_batching_dims, spec.start_indices_batching_dims, strict=True)
    for d, batch_dim in pairs:
        starts[d] = _along(np.arange(indices.shape[batch_dim]), batch_axes[batch_dim], rank)
    return starts


def _along(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if d == axis else 1 for d in range(rank)])
