"""Runs the scalar code of a schedule: it alone decides which bundles run, and how often.

A kernel's loops, the predicates of its grid steps and the indices of its blocks are computed by
scalar instructions, and depend on shapes alone. So they can be run here, without the vector
instructions between them, and give exactly how often a TPU would run each bundle, and what it would
copy when.
"""

import collections
import itertools
from collections.abc import Callable
from typing import NamedTuple

from kernel.benchmark.arithmetic import operation, signed
from kernel.benchmark.copies import Copies
from kernel.benchmark.flow import (
    ARGUMENT,
    BRANCH,
    COPY,
    LOAD,
    PHI,
    STORE,
    WAIT,
    Block,
    read_blocks,
)
from kernel.benchmark.generations import Generation
from kernel.benchmark.notation import Instruction, Unreadable, read_operand
from kernel.benchmark.schedule import Bundle

# No kernel takes that long: a loop that does not end was misread.
_MOST_CYCLES = 2**34

# Arrays stand so far apart, in the units of addresses, that two are never taken for one.
_APART = 2**20

_Step = Callable[[], None]
_Value = Callable[[], int]


class Execution(NamedTuple):
    """How a schedule ran.

    Attributes:
      cycles: of all bundles that ran, as if every copy were done at once.
      cycles_with_copies: the same with the waits for copies.
    """

    cycles: int
    cycles_with_copies: int


def execute(
    bundles: list[Bundle], generation: Generation, core_array: str | None = None
) -> Execution:
    """Runs the scalar code of a schedule.

    Args:
      bundles: the schedule.
      generation: what it is for.
      core_array: the name of the array in which a core finds its number, if it has one.

    Raises Unreadable for an instruction that is not known, for a loop that does not end, and for
    code that depends on data, of which there are none.
    """
    return _Machine(read_blocks(bundles, generation.delay), generation, core_array).run()


class _Machine:
    """Every instruction becomes a function without arguments; a block is run by calling its own."""

    def __init__(self, blocks: list[Block], generation: Generation, core_array: str | None) -> None:
        self._copies = Copies(generation)
        self._cycle = 0  # of the first bundle of the block that runs, waits so far included
        self._taken = False  # whether the block's branch is
        # 0 is for registers that are set under a predicate that never held.
        self._values: dict[str, int] = collections.defaultdict(int)
        self._arrays: dict[str, int] = collections.defaultdict(
            itertools.count(_APART, _APART).__next__
        )
        # Cores that run a program together divide the grid by their numbers; this is core 0.
        self._memory = {} if core_array is None else {self._arrays[core_array]: 0}
        # By register the phis that may take its value, and by phi the value that it would take.
        self._phis: dict[str, list[str]] = collections.defaultdict(list)
        self._incoming: dict[str, int] = collections.defaultdict(int)
        for block in blocks:
            for _, instruction in block.code:
                if instruction.opcode == PHI:
                    for register in instruction.registers():
                        self._phis[register].append(instruction.result)
        self._blocks = [(block, self._steps(block)) for block in blocks]

    def run(self) -> Execution:
        cycles = 0
        number: int | None = 0
        while number is not None:
            block, steps = self._blocks[number]
            self._taken = False
            for step in steps:
                step()
            cycles += block.length
            self._cycle += block.length
            if cycles > _MOST_CYCLES:
                raise Unreadable(f"no end after {cycles} cycles")
            number = block.target if self._taken else block.following
        return Execution(cycles, self._cycle)

    def _steps(self, block: Block) -> list[_Step]:
        phis = [instruction.result for _, instruction in block.code if instruction.opcode == PHI]
        steps = [lambda: self._enter(phis)] if phis else []
        for bundle, instruction in block.code:
            if instruction.opcode != PHI:
                steps.append(self._where(instruction, self._step(bundle, instruction)))
        return steps

    def _enter(self, phis: list[str]) -> None:
        """Sets the phis of a block, all at once: one may take what another had before."""
        for phi in phis:
            self._values[phi] = self._incoming[phi]
        for phi in phis:
            self._pass_on(phi)

    def _pass_on(self, register: str) -> None:
        for phi in self._phis[register]:
            self._incoming[phi] = self._values[register]

    def _where(self, instruction: Instruction, step: _Step) -> _Step:
        """The step under the instruction's predicate."""
        predicate, negated = instruction.predicate, instruction.negated
        if predicate is None:
            return step
        values, result, otherwise = self._values, instruction.result, instruction.otherwise

        def where() -> None:
            if bool(values[predicate]) != negated:
                step()
            elif otherwise is not None:
                values[result] = values[otherwise]
                self._pass_on(result)

        return where

    def _step(self, bundle: int, instruction: Instruction) -> _Step:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == BRANCH:
            return self._take
        if opcode == WAIT:
            return self._wait(bundle, *map(self._value, operands))
        if opcode.startswith(COPY):
            _, size, _, flag, *_ = operands
            return self._start(opcode.removeprefix(COPY), bundle, *map(self._value, (size, flag)))
        if opcode == STORE:
            return self._store(*map(self._value, operands))
        if opcode == LOAD:
            return self._set(instruction.result, self._load, [self._value(operands[0])])
        if opcode.startswith(ARGUMENT):
            return self._set(instruction.result, int, [])
        compute = operation(opcode)
        if compute is None:
            raise Unreadable(f"instruction {instruction}")
        return self._set(instruction.result, compute, [self._value(text) for text in operands])

    def _take(self) -> None:
        self._taken = True

    def _wait(self, bundle: int, flag: _Value, size: _Value) -> _Step:
        def wait() -> None:
            now = self._cycle + bundle
            self._cycle += self._copies.wait(flag(), size(), now) - now

        return wait

    def _start(self, route: str, bundle: int, size: _Value, flag: _Value) -> _Step:
        return lambda: self._copies.start(route, size(), flag(), self._cycle + bundle)

    def _store(self, address: _Value, value: _Value) -> _Step:
        def store() -> None:
            self._memory[address()] = value()

        return store

    def _load(self, address: int) -> int:
        if address not in self._memory:
            raise Unreadable("the schedule depends on scalars that nothing in it has written")
        return self._memory[address]

    def _set(self, result: str, compute: Callable[..., int], operands: list[_Value]) -> _Step:
        values = self._values
        if result in self._phis:

            def step() -> None:
                values[result] = compute(*[operand() for operand in operands])
                self._pass_on(result)
        else:

            def step() -> None:
                values[result] = compute(*[operand() for operand in operands])

        return step

    def _value(self, text: str) -> _Value:
        registers, arrays, number = read_operand(text)
        number = signed(number) + sum(self._arrays[array] for array in arrays)
        values = self._values
        if not registers:
            return lambda: number
        first, *others = registers
        if not others and not number:
            return lambda: values[first]
        return lambda: number + sum(values[register] for register in registers)
