"""Results as data: one row for each generation, shape and pass, and the versions that made them."""

import json
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.measuring import Cost
from kernel.benchmark.workloads import LARGER_BLOCKS, PASSES, SHAPES

SCHEMA = 1

# What is shipped.
RECORDED = Path(__file__).with_name("results.json")


class Key(NamedTuple):
    """What a row is about: names in `GENERATIONS`, `SHAPES` and `PASSES`."""

    generation: str
    shape: str
    which: str


class Row(NamedTuple):
    """What the project's kernel costs, and upstream's.

    Attributes:
      ours: with the blocks that it chooses.
      default: upstream's with its default blocks, None if that does not compile.
      best: upstream's with its best square blocks, None if none compile.
      best_block: the size of these.
    """

    ours: Cost
    default: Cost | None
    best: Cost | None
    best_block: int | None


class Results(NamedTuple):
    """Rows, and the versions of jax and libtpu with which all of them were measured."""

    versions: dict[str, str]
    rows: dict[Key, Row]


def versions() -> dict[str, str]:
    """Of what a schedule depends on, beside the kernel. Raises ValueError without libtpu."""
    try:
        return {name: metadata.version(name) for name in ("jax", "libtpu")}
    except metadata.PackageNotFoundError as error:
        raise ValueError(f"{error.name} is not installed, which has the compiler") from None


def read(path: Path) -> Results:
    """Reads what `write` wrote. Raises ValueError, which names the file, for anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path}: is no result of this benchmark, of schema {SCHEMA}")
    try:
        rows = dict(_row(row) for row in data["rows"])
        return Results({name: str(data["versions"][name]) for name in ("jax", "libtpu")}, rows)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: a row or the versions lack, or have besides, {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, results: Results) -> None:
    """Writes results as JSON, in the order of generations, shapes and passes."""
    orders = [list(names) for names in (GENERATIONS, SHAPES, PASSES)]
    keys = sorted(
        results.rows,
        key=lambda key: [order.index(name) for order, name in zip(orders, key, strict=True)],
    )
    rows = [_data(key, results.rows[key]) for key in keys]
    data = {"schema": SCHEMA, "versions": results.versions, "rows": rows}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _data(key: Key, row: Row) -> dict[str, Any]:
    costs = {
        name: None if cost is None else cost._asdict()
        for name, cost in (("ours", row.ours), ("default", row.default), ("best", row.best))
    }
    which = {"generation": key.generation, "shape": key.shape, "pass": key.which}
    return {**which, **costs, "best_block": row.best_block}


def _row(data: dict[str, Any]) -> tuple[Key, Row]:
    key = Key(data["generation"], data["shape"], data["pass"])
    all_known: tuple[Collection[str], ...] = (GENERATIONS, SHAPES, PASSES)
    for name, known in zip(key, all_known, strict=True):
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
    block = data["best_block"]
    if block is not None and block not in LARGER_BLOCKS:
        raise ValueError(f"best_block={block!r} is none of {', '.join(map(str, LARGER_BLOCKS))}")
    default, best = (
        None if data[each] is None else _cost(data[each]) for each in ("default", "best")
    )
    return key, Row(_cost(data["ours"]), default, best, block)


def _cost(data: dict[str, Any]) -> Cost:
    cost = Cost(**data)
    for name, kind in get_type_hints(Cost).items():
        value = getattr(cost, name)
        if kind in (int, float, bool) and not isinstance(value, (int, kind)):
            raise ValueError(f"{name}={value!r} is no {kind.__name__}")
    return cost
