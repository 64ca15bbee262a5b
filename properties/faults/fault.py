"""A fault: a small change to the kernel that makes some legal call wrong, under a lasting name."""

from dataclasses import dataclass

from properties.faults.planting import Edit


@dataclass(frozen=True)
class Fault:
    """`says` what is wrong in the field's terms; `edits` plant it in the kernel of today.

    `source` is a public report of a fault of this kind in some attention kernel, as project#issue,
    "" where there is none.
    """

    says: str
    edits: tuple[Edit, ...]
    source: str = ""

    def __str__(self) -> str:
        return f"{self.says} ({self.source})" if self.source else self.says


def fault(says: str, module: str, old: str, new: str, source: str = "") -> Fault:
    """A fault of one edit; `old` occurs once in the module's source."""
    return Fault(says, (Edit(module, old, new),), source)
