"""Results as text for people."""

from collections.abc import Iterable

from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.measuring import Cost
from kernel.benchmark.results import Key, Results, Row

_HEADER = (
    f"{'shape':9} {'pass':8} {'cycles':>9} {'us':>8} {'of bound':>8} {'MiB':>5} {'spills':>6} "
    f"{'compile':>8} {'upstream 128':>17} {'its best square':>23}"
)


def about(results: Results) -> str:
    """With which versions they were measured."""
    return f"jax {results.versions['jax']}, libtpu {results.versions['libtpu']}"


def heading(generation: str) -> list[str]:
    """What stands above the rows of a generation."""
    chip = GENERATIONS[generation]
    teraflops = 2 * chip.products * chip.clock / 1e6
    return [
        "",
        f"{generation}: {chip.clock} MHz, {teraflops:.0f} TFLOP/s in bfloat16 a core",
        _HEADER,
    ]


def line(key: Key, row: Row, earlier: Row | None = None) -> str:
    """One row; `earlier` is the same of an earlier result, with which it is compared."""
    ours = row.ours
    text = (
        f"{key.shape:9} {key.which:8} {ours.cycles:9d} {ours.microseconds:8.1f} "
        f"{ours.of_bound:8.1%} {ours.vmem_bytes / 2**20:5.1f} {ours.spills:6d} "
        f"{ours.compile_seconds:6.1f} s {_ratio(row.default, ours):>17} "
        f"{_ratio(row.best, ours):>16} ({row.best_block or '-':>4})"
    )
    if earlier is not None and earlier.ours.cycles_with_copies != ours.cycles_with_copies:
        change = ours.cycles_with_copies / earlier.ours.cycles_with_copies - 1
        text += f"   {change:+.1%} against {earlier.ours.microseconds:.1f}"
    if ours.reloads_code:
        text += "   and the time to load its code on every turn of a loop"
    return text


def table(results: Results) -> Iterable[str]:
    """All rows, under the heading of each generation."""
    above = None
    for key, row in results.rows.items():
        if key.generation != above:
            above = key.generation
            yield from heading(above)
        yield line(key, row)


def _ratio(upstream: Cost | None, ours: Cost) -> str:
    if upstream is None:
        return "-"
    return f"{upstream.microseconds:.1f} {upstream.microseconds / ours.microseconds:5.2f}x"
