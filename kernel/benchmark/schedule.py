"""Reads what libtpu's compiler writes about a kernel: its schedule, and what that needs.

The schedule is a list of *bundles*, of instructions that start in the same cycle. It is read as it
stands after the allocation of registers, where a bundle is a cycle: bundles that are left empty
while a result is awaited are still there, and are squeezed out only later.
"""

import re

from kernel.benchmark.notation import Instruction, Unreadable, read_instruction

# The versions of libtpu whose dumps have been read and looked through.
READABLE = ("0.0.42", "0.0.50", "0.0.52")

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BUNDLE = re.compile(r"^ *(0x[0-9a-f]+|0) +(?:[A-Z]{2})? *:[ >]*\{", re.MULTILINE)
_ALLOCATION = re.compile(r"(#allocation\w+) \[shape = '[^']*', space=vmem, size = (0x[0-9a-f]+)")
_CORE = re.compile(r"#(allocation\w+) \[shape = '[^']*', space=smem,[^\]]*core index'\]")
_OVERLAYS = re.compile(r'"(#\d+):[^"]*" -> "(#\d+):[^"]*"')


# The instructions of a bundle that belong to scalar code; those of the vector units are left out.
Bundle = list[Instruction]


def read_bundles(text: str) -> list[Bundle]:
    """The schedule of a kernel, from its `packed-bundles-post-ra`. Raises Unreadable."""
    text = _COMMENT.sub("", text)
    starts = list(_BUNDLE.finditer(text))
    if not starts:
        raise Unreadable("no bundles in a schedule")
    ends = [start.start() for start in starts[1:]] + [len(text)]
    bundles = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if int(start[1], 16) != number:
            raise Unreadable(f"bundle {number} of a schedule is numbered {start[1]}")
        body = text[start.end() : end].rpartition("}")[0]
        pieces = (read_instruction(piece.strip()) for piece in body.split(";;"))
        bundles.append([instruction for instruction in pieces if instruction])
    return bundles


def read_spills(text: str, bundles: int) -> int:
    """How many stores of a kernel save a register that was needed for something else.

    Args:
      text: its `pre-delay_hlo-static-per-bundle-utilization`: a heading, the names of the units,
        how many there are, another heading, and for each bundle a row of how many it uses.
      bundles: how many bundles its schedule has.

    Raises Unreadable.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    names = [name.strip() for name in lines[1].split(",")] if len(lines) > 1 else []
    rows = [line.split() for line in lines[4:]]
    if "VSTORE:SPILL" not in names or len(rows) != bundles:
        raise Unreadable(f"{len(rows)} rows of {names} are no use of {bundles} bundles")
    column = names.index("VSTORE:SPILL")
    return sum(int(row[column]) for row in rows)


def read_vmem(text: str) -> int:
    """Bytes of on-chip memory that a kernel has, from its `post-bundle-packing-post-ra`."""
    return sum(int(size, 16) for size in dict(_ALLOCATION.findall(text)).values())


def read_core_array(text: str) -> str | None:
    """The array in which a core finds its number, from `post-bundle-packing-post-ra`, if any."""
    match = _CORE.search(text)
    return None if match is None else match[1]


def reloads_code(text: str) -> bool:
    """Whether a loop of the program is too long for the memory that holds instructions.

    Its code is then loaded again on every turn, which takes time that is not counted here.

    Args:
      text: the program's `overlay-graph`: which part of the code is followed by which.
    """
    followed: dict[str, set[str]] = {}
    for one, other in _OVERLAYS.findall(text):
        followed.setdefault(one, set()).add(other)
    return any(part in _reached(part, followed) for part in followed)


def _reached(part: str, followed: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [part]
    while waiting:
        new = followed.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached
