"""How large a case may claim to be: told from its fields, before anything is made of it."""

from properties.cases import records
from properties.cases.case import Case, CaseError

MOST_BYTES = 4 * 2**30
"""Of the inputs and the logits in float64. Several times as much is in use while a case is judged:
a case at this limit takes a large machine, and minutes."""


def check(case: Case) -> None:
    """Raises CaseError for a case of which the arrays would be too large."""
    rows = case.batch * case.heads
    numbers = rows * (2 * (case.q_len + case.kv_len) * case.head_dim + case.q_len * case.kv_len)
    if 8 * numbers > MOST_BYTES:
        names = ("batch", "heads", "q_len", "kv_len", "head_dim")
        sizes = ", ".join(f"{name} {records.shown(getattr(case, name))}" for name in names)
        raise CaseError(
            f"{sizes}: inputs and logits take more than {MOST_BYTES // 2**30} GiB in float64; "
            "give a smaller case that fails too"
        )
