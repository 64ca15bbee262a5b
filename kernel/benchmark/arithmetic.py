"""What the scalar instructions compute, on signed numbers of 32 bits and on truth values."""

import operator
from collections.abc import Callable

Operation = Callable[..., int]


def signed(value: int) -> int:
    """The lowest 32 bits as a signed number."""
    return ((value + 2**31) & 0xFFFFFFFF) - 2**31


def unsigned(value: int) -> int:
    """The lowest 32 bits as a number without a sign."""
    return value & 0xFFFFFFFF


_COMPARISONS: dict[str, Operation] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}

_OPERATIONS: dict[str, Operation] = {
    "sadd.s32": lambda a, b: signed(a + b),
    "ssub.s32": lambda a, b: signed(a - b),
    "smul.u32": lambda a, b: signed(a * b),
    "smul.s32": lambda a, b: signed(a * b),
    "smulhi.u32": lambda a, b: signed(unsigned(a) * unsigned(b) >> 32),
    "sand.u32": operator.and_,
    "sor.u32": operator.or_,
    "sxor.u32": operator.xor,
    "sshll.u32": lambda a, b: signed(a << b),
    "sshra.s32": operator.rshift,
    "sshrl.u32": lambda a, b: signed(unsigned(a) >> b),
    "smov": int,
    "smov.u32": int,
    "smov.s32": int,
    "por": lambda a, b: bool(a or b),
    "pand": lambda a, b: bool(a and b),
    "pnor": lambda a, b: not (a or b),
    "pnand": lambda a, b: not (a and b),
    "pxor": lambda a, b: bool(a) != bool(b),
    "pneg": operator.not_,
    "pmov": bool,
    "scalar_select": lambda condition, a, b: a if condition else b,
}


def operation(opcode: str) -> Operation | None:
    """What an instruction makes of its operands, None if that is not known."""
    if opcode.startswith("scalar_lea."):  # an address and an offset
        return operator.add
    if not opcode.startswith("scmp."):
        return _OPERATIONS.get(opcode)
    _, relation, kind, *_ = opcode.split(".")
    compare = _COMPARISONS.get(relation)
    if compare is None or kind not in ("s32", "u32"):
        return None
    if kind == "s32":
        return compare
    return lambda a, b: compare(unsigned(a), unsigned(b))
