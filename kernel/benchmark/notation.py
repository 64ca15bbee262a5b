"""The notation of scalar instructions: predicates, registers, numbers, addresses."""

import re
from typing import NamedTuple

# %result = opcode arguments
_INSTRUCTION = re.compile(r"%(\w+) = ([\w.]+)\s*(.*)", re.DOTALL)
# (%p1), (!%p1), or (%p1, %old)
_PREDICATE = re.compile(r"\((!?)%(\w+)(?:, %(\w+))?\)")
# What says nothing about values: [thread:$0], [resolvable:$true].
_ATTRIBUTE = re.compile(r"\[\w+:\$\w+\]")
_REGISTER = re.compile(r"%(\w+)")
_COMMA = re.compile(r",(?![^\[]*\])")  # but for those in brackets
_SPACE = re.compile(r"\[\w+:(.*)\]")  # [smem:[#allocation5]]
_ALIAS = re.compile(r"(%\w+|-?\d+) \[#\w+\]")  # %s1 [#allocation5]: what it points to
_NUMBER = re.compile(r"-?\d+|\$0x[0-9a-f]+")


class Unreadable(ValueError):
    """The compiler wrote something that this reader does not know."""


class Instruction(NamedTuple):
    """A scalar instruction.

    Attributes:
      result: its name, which is that of the register that it sets, if it does.
      opcode: what it does.
      predicate: the register that says whether it is done, None if it is always done.
      negated: whether it is done where the predicate does not hold.
      otherwise: the register whose value is the result if it is not done.
      operands: the text of each.
    """

    result: str
    opcode: str
    predicate: str | None
    negated: bool
    otherwise: str | None
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.opcode} {', '.join(self.operands)}"

    def registers(self) -> list[str]:
        """Every register that it reads."""
        read = [name for name in (self.predicate, self.otherwise) if name]
        for text in self.operands:
            read += _REGISTER.findall(text)
        return read


class Operand(NamedTuple):
    """A value: the sum of some registers, the addresses of some arrays, and a number."""

    registers: tuple[str, ...]
    arrays: tuple[str, ...]
    number: int


def read_instruction(text: str) -> Instruction | None:
    """Reads `%result = opcode arguments`; None if it is a vector instruction."""
    match = _INSTRUCTION.match(text)
    if match is None:
        return None
    result, opcode, arguments = match.groups()
    # Some vector instructions set a scalar register.
    if opcode.startswith("v") and not re.match(r"[sp]\d", result):
        return None
    arguments = _ATTRIBUTE.sub("", arguments)
    predicate, negated, otherwise = None, False, None
    if match := _PREDICATE.search(arguments):
        predicate, negated, otherwise = match[2], bool(match[1]), match[3]
        arguments = arguments[: match.start()] + "," + arguments[match.end() :]
    if opcode == "sst":
        # No comma stands between the address and the value.
        arguments = arguments.replace("]] ", "]], ", 1)
    pieces = (piece.strip() for piece in _COMMA.split(arguments))
    operands = tuple(piece for piece in pieces if piece)
    return Instruction(result, opcode, predicate, negated, otherwise, operands)


def read_operand(text: str) -> Operand:
    """What an operand stands for. Raises Unreadable.

    It is a register, a number, or an address, in brackets: a sum of these and of names of arrays.
    """
    sum_of = text
    if match := _ALIAS.fullmatch(sum_of):
        sum_of = match[1]
    while match := _SPACE.fullmatch(sum_of):
        sum_of = match[1]
    registers: list[str] = []
    arrays: list[str] = []
    number = 0
    for term in sum_of.removeprefix("[").removesuffix("]").split(" + "):
        if term.startswith("%"):
            registers.append(term[1:])
        elif term.startswith("#"):
            arrays.append(term[1:])
        elif term in ("true", "false"):
            number += term == "true"
        elif _NUMBER.fullmatch(term):
            number += int(term.removeprefix("$"), 16 if "x" in term else 10)
        else:
            raise Unreadable(f"operand {text!r}")
    return Operand(tuple(registers), tuple(arrays), number)
