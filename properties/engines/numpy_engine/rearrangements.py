"""Moving values in NumPy: shapes, slices, joins, gathers and sorts."""

from functools import partial
from typing import Any

import numpy as np

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine import arithmetic, indexing
from properties.engines.numpy_engine.rules import Names, Operand, Rule, register, widened

RULES: dict[str, Rule] = {}


@register(RULES, "iota")
def _iota(names: Names, params: dict, out: Any) -> str:
    along = [1] * len(out.shape)
    along[params["dimension"]] = out.shape[params["dimension"]]
    counted = np.arange(out.shape[params["dimension"]]).astype(out.dtype).reshape(along)
    return names.name(np.broadcast_to(counted, out.shape))


@register(RULES, "broadcast_in_dim")
def _broadcast_in_dim(names: Names, params: dict, out: Any, x: Operand) -> str:
    spread = [1] * len(out.shape)
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        spread[axis] = size
    source = x.code if x.shape == tuple(spread) else f"{x}.reshape({tuple(spread)})"
    if tuple(spread) == tuple(out.shape):
        return source
    return f"np.broadcast_to({source}, {tuple(out.shape)})"


@register(RULES, "broadcast_to")
def _broadcast_to(names: Names, params: dict, out: Any, x: Operand) -> str:
    return f"np.broadcast_to({x}, {tuple(out.shape)})"


@register(RULES, "reshape", "squeeze", "expand_dims")
def _reshape(names: Names, params: dict, out: Any, x: Operand) -> str:
    if params.get("dimensions") is not None and "new_sizes" in params:
        raise Unsupported("a reshape that also transposes")
    return x.code if x.shape == tuple(out.shape) else f"{x}.reshape({tuple(out.shape)})"


@register(RULES, "transpose")
def _transpose(names: Names, params: dict, out: Any, x: Operand) -> str:
    # A BLAS sums in another order where numbers lie otherwise in memory, and bits would depend on
    # whether an array had been turned.
    return f"np.asarray({x}.transpose({tuple(map(int, params['permutation']))}), order='C')"


@register(RULES, "rev")
def _rev(names: Names, params: dict, out: Any, x: Operand) -> str:
    return f"np.flip({x}, {tuple(map(int, params['dimensions']))})"


@register(RULES, "concatenate")
def _concatenate(names: Names, params: dict, out: Any, *parts: Operand) -> str:
    return f"np.concatenate([{', '.join(map(str, parts))}], axis={params['dimension']})"


@register(RULES, "stack")
def _stack(names: Names, params: dict, out: Any, *parts: Operand) -> str:
    return f"np.stack([{', '.join(map(str, parts))}], axis={params['axis']})"


@register(RULES, "tile")
def _tile(names: Names, params: dict, out: Any, x: Operand) -> str:
    reps = tuple(map(int, params["reps"]))
    return x.code if set(reps) <= {1} else f"np.tile({x}, {reps})"


@register(RULES, "repeat")
def _repeat(names: Names, params: dict, out: Any, x: Operand) -> str:
    # Pallas's TPU `repeat` puts whole copies after each other, as np.tile does.
    reps = [1] * len(x.shape)
    reps[params["axis"]] = params["repeats"]
    return f"np.tile({x}, {tuple(reps)})"


@register(RULES, "slice")
def _slice(names: Names, params: dict, out: Any, x: Operand) -> str:
    strides = params["strides"] or (1,) * len(x.shape)
    limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return f"{x}[{', '.join(f'{a}:{b}:{c}' for a, b, c in limits)}]" if x.shape else x.code


@register(RULES, "split")
def _split(names: Names, params: dict, out: Any, x: Operand) -> str:
    cuts = np.cumsum(params["sizes"])[:-1].tolist()
    return f"np.split({x}, {cuts}, axis={params['axis']})"


@register(RULES, "unstack")
def _unstack(names: Names, params: dict, out: Any, x: Operand) -> str:
    return f"tuple(np.moveaxis({x}, {params['axis']}, 0))"


@register(RULES, "dynamic_slice")
def _dynamic_slice(names: Names, params: dict, out: Any, x: Operand, *starts: Operand) -> str:
    sizes = tuple(map(int, params["slice_sizes"]))
    where = f"({''.join(f'{start}, ' for start in starts)})"
    return f"{x}[{names.name(indexing.clamped)}({where}, {sizes}, {x.shape})]"


@register(RULES, "dynamic_update_slice")
def _dynamic_update_slice(names: Names, params: dict, out: Any, *operands: Operand) -> str:
    return f"{names.name(indexing.updated)}({', '.join(map(str, operands))})"


@register(RULES, "pad")
def _pad(names: Names, params: dict, out: Any, x: Operand, fill: Operand) -> str:
    config = [tuple(map(int, dimension)) for dimension in params["padding_config"]]
    return f"{names.name(indexing.pad)}({x}, {fill}, {config})"


@register(RULES, "gather")
def _gather(names: Names, params: dict, out: Any, x: Operand, indices: Operand) -> str:
    fill = None
    if params["mode"].name == "FILL_OR_DROP":
        fill = params["fill_value"]
        if fill is None:
            fill = arithmetic.poison((), out.dtype)[()]
    sizes = tuple(map(int, params["slice_sizes"]))
    spec = params["dimension_numbers"]
    take = partial(indexing.gather, spec=spec, sizes=sizes, fill=fill)
    return f"{names.name(take)}({x}, {indices})"


@register(RULES, "sort")
def _sort(names: Names, params: dict, out: Any, *operands: Operand) -> str:
    if params["num_keys"] != 1:
        raise Unsupported("a sort by several keys")
    axis = params["dimension"]
    order = f"np.argsort({widened(operands[0])}, axis={axis}, kind='stable')"
    if len(operands) == 1:
        return f"np.take_along_axis({operands[0]}, {order}, {axis})"
    sort = f"lambda order, *all: [np.take_along_axis(x, order, {axis}) for x in all]"
    return f"({sort})({order}, {', '.join(map(str, operands))})"


@register(RULES, "roll")
def _roll(names: Names, params: dict, out: Any, x: Operand, shift: Operand) -> str:
    if params["stride"] is not None:
        raise Unsupported("a roll with a stride")
    return f"np.roll({x}, int({shift}), {params['axis']})"
