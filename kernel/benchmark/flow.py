"""The scalar code of a schedule as blocks: what is run from start to end, and what comes next.

Of all scalar instructions these keep what a branch or a copy depends on. Most of the others compute
addresses, and check them.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from kernel.benchmark.notation import Instruction, Unreadable, read_operand
from kernel.benchmark.schedule import Bundle

BRANCH = "sbr.rel"
COPY = "dma."  # and a route, as in dma.hbm_to_vmem
WAIT = "dma.done.wait"
LOAD, STORE = "sld", "sst"  # from and to the memory of scalars
PHI = "sphi"  # the value of that operand which was set last
ARGUMENT = "inlined_call_operand."  # the address of an array that the kernel is given

_TARGET = re.compile(r"bundleno = (\d+)")


class Block(NamedTuple):
    """Bundles that are run one after the other.

    Attributes:
      length: how many there are.
      code: the instructions that matter, and in which bundle of the block each is.
      following: the number of the block that comes next, None at the end of the schedule.
      target: the number of the block that comes next if a branch is taken, None for the end.
    """

    length: int
    code: list[tuple[int, Instruction]]
    following: int | None
    target: int | None


def read_blocks(bundles: list[Bundle], delay: int) -> list[Block]:
    """The blocks of a schedule, in its order.

    Args:
      bundles: the schedule.
      delay: how many bundles after a branch are run whether or not it is taken.

    Raises Unreadable.
    """
    needed = _needed([instruction for bundle in bundles for instruction in bundle])
    branches = _branches(bundles)
    starts = {0}
    for at, branch in branches.items():
        starts |= {at + delay + 1, _target(branch)}
    order = sorted(start for start in starts if start < len(bundles))
    numbers = {start: number for number, start in enumerate(order)}
    blocks = []
    for start, end in zip(order, [*order[1:], len(bundles)], strict=True):
        within = [at for at in range(start, end) if at in branches]
        if within not in ([], [end - delay - 1]):
            raise Unreadable(f"bundles {start} to {end} branch at {within}, and go on")
        ending = branches[within[0]] if within else None
        code = [
            (at - start, instruction)
            for at in range(start, end)
            for instruction in bundles[at]
            if instruction.result in needed
        ]
        target = None if ending is None else numbers.get(_target(ending))
        blocks.append(Block(end - start, code, numbers.get(end), target))
    return blocks


def _branches(bundles: list[Bundle]) -> dict[int, Instruction]:
    branches: dict[int, Instruction] = {}
    for at, bundle in enumerate(bundles):
        for instruction in bundle:
            if instruction.opcode.startswith(("sbr", "scall")):
                if at in branches:
                    raise Unreadable(f"two branches in bundle {at}")
                branches[at] = instruction
    return branches


def _target(branch: Instruction) -> int:
    match = _TARGET.search(str(branch))
    if branch.opcode != BRANCH or match is None:
        raise Unreadable(f"branch {branch}")
    return int(match[1])


def _needed(code: list[Instruction]) -> set[str]:
    """The results of the instructions that a branch or a copy depends on, and of these."""
    setting = {instruction.result: instruction for instruction in code}
    stores = [instruction for instruction in code if instruction.opcode == STORE]
    waiting = [each for each in code if each.opcode.startswith((BRANCH, COPY))]
    needed: set[str] = set()
    while waiting:
        instruction = waiting.pop()
        if instruction.result in needed:
            continue
        needed.add(instruction.result)
        for register in _read(instruction):
            if register not in setting:
                raise Unreadable(f"{instruction} reads %{register}, which nothing sets")
            waiting.append(setting[register])
        if instruction.opcode == LOAD:
            waiting += _reaching(instruction, stores)
    return needed


def _read(instruction: Instruction) -> list[str]:
    """The registers whose values matter: of a copy not where it reads and writes."""
    if instruction.opcode.startswith(COPY) and instruction.opcode != WAIT:
        if len(instruction.operands) < 4:
            raise Unreadable(f"copy {instruction}")
        _, size, _, flag, *_ = instruction.operands
        instruction = instruction._replace(operands=(size, flag))
    return instruction.registers()


def _reaching(load: Instruction, stores: list[Instruction]) -> Iterable[Instruction]:
    """The stores that may write what a load reads: all but those to other arrays."""
    arrays = read_operand(load.operands[0]).arrays
    for store in stores:
        other = read_operand(store.operands[0]).arrays
        if arrays == other or not arrays or not other:
            yield store
