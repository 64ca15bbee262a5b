"""A fault: a small change to the kernel that makes some legal call wrong, under a lasting name."""

from dataclasses import dataclass

from properties.faults.planting import Edit


@dataclass(frozen=True)
class Fault:
    """`says` what is wrong in the field's terms; `edits` plant it in the kernel of today."""

    says: str
    edits: tuple[Edit, ...]


def fault(says: str, module: str, old: str, new: str) -> Fault:
    """A fault of one edit; `old` occurs once in the module's source."""
    return Fault(says, (Edit(module, old, new),))
