"""Measures a workload: compiles it, and adds up what its operations cost."""

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from kernel.benchmark import compiling, schedule
from kernel.benchmark.execution import execute
from kernel.benchmark.generations import GENERATIONS
from kernel.benchmark.notation import Unreadable
from kernel.benchmark.workloads import SHAPES

_SCHEDULE = "packed-bundles-post-ra"
_MEMORY = "post-bundle-packing-post-ra"
_UNITS = "pre-delay_hlo-static-per-bundle-utilization"
_DUMP = re.compile(rf"\d+-(.+)-\d+-({_SCHEDULE}|{_MEMORY}|{_UNITS})\.txt")

# What the compiler puts around the operations of a program.
_FRAME = ("<late", "TLP")


class Cost(NamedTuple):
    """What a program costs on one core.

    Attributes:
      cycles: of its operations, one after the other, as if every copy were done at once.
      cycles_with_copies: the same with the waits for copies.
      microseconds: of these, at the clock of the generation.
      of_bound: which part of them the matrix units would need for the useful products alone, in
        bfloat16 and as if every shape filled them.
      vmem_bytes: on-chip memory of the kernel that takes most.
      spills: registers that its kernels save, counted where they are written in the code.
      compile_seconds: of CPU time.
      reloads_code: whether a loop is longer than the memory for instructions; the time that this
        costs is not counted.
      operations: the microseconds of each kernel, and of each operation that XLA adds.
    """

    cycles: int
    cycles_with_copies: int
    microseconds: float
    of_bound: float
    vmem_bytes: int
    spills: int
    compile_seconds: float
    reloads_code: bool
    operations: dict[str, float]


def measure(generation: str, shape: str, which: str, block: int | None) -> Cost:
    """Compiles a workload for a generation and runs the scalar code of its schedule.

    Args:
      generation, shape, which: names in `GENERATIONS`, `SHAPES` and `PASSES`.
      block: of upstream's kernel, None for the project's.

    Raises Refused if it does not compile, Unreadable if what the compiler tells is not understood.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-benchmark-") as name:
        folder = Path(name)
        compiled = compiling.compile_for(generation, shape, which, block, folder)
        return _cost(generation, shape, which, compiled, folder)


def _cost(
    generation: str, shape: str, which: str, compiled: compiling.Compiled, folder: Path
) -> Cost:
    chip = GENERATIONS[generation]
    cycles = cycles_with_copies = spills = vmem_bytes = 0
    operations: dict[str, float] = {}
    for name, dumps in _dumps(folder).items():
        try:
            bundles = schedule.read_bundles(dumps[_SCHEDULE])
            ran = execute(bundles, chip, schedule.read_core_array(dumps[_MEMORY]))
            if name in compiled.kernels:
                spills += schedule.read_spills(dumps[_UNITS], len(bundles))
                vmem_bytes = max(vmem_bytes, schedule.read_vmem(dumps[_MEMORY]))
        except Unreadable as error:
            raise Unreadable(f"{name} for {generation}: {error}") from error
        cycles += ran.cycles
        cycles_with_copies += ran.cycles_with_copies
        operations[name] = round(ran.cycles_with_copies / chip.clock, 1)
    if not operations.keys() >= set(compiled.kernels):
        raise Unreadable(f"the compiler wrote nothing of some of {', '.join(compiled.kernels)}")
    bound = SHAPES[shape].useful_products(which) / chip.products / compiled.cores
    return Cost(
        cycles=cycles,
        cycles_with_copies=cycles_with_copies,
        microseconds=round(cycles_with_copies / chip.clock, 1),
        of_bound=round(bound / cycles_with_copies, 3),
        vmem_bytes=vmem_bytes,
        spills=spills,
        compile_seconds=round(compiled.seconds, 1),
        reloads_code=any(
            schedule.reloads_code(path.read_text(encoding="utf-8"))
            for path in folder.glob("*-overlay-graph.txt")
        ),
        operations=operations,
    )


def _dumps(folder: Path) -> dict[str, dict[str, str]]:
    """By operation, the text of each dump."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.txt")):
        match = _DUMP.fullmatch(path.name)
        if match and not match[1].startswith(_FRAME):
            found.setdefault(match[1], {})[match[2]] = path.read_text(encoding="utf-8")
    return {name: dumps for name, dumps in found.items() if len(dumps) == 3}
