"""How large a case may claim to be: told from its fields, before anything is made of it."""

from properties.cases.case import Case, CaseError

MOST_BYTES = 4 * 2**30
"""Of the inputs and the logits in float64. Several times as much is in use while a case is judged:
a case at this limit takes a large machine, and minutes."""


def check(case: Case) -> None:
    """Raises CaseError for a case of which the arrays would be too large."""
    rows = case.batch * case.heads
    numbers = rows * (2 * (case.q_len + case.kv_len) * case.head_dim + case.q_len * case.kv_len)
    if 8 * numbers > MOST_BYTES:
        raise CaseError(
            f"batch {case.batch}, heads {case.heads}, q_len {case.q_len}, kv_len {case.kv_len}, "
            f"head_dim {case.head_dim}: inputs and logits take {8 * numbers / 2**30:.3g} GiB in "
            f"float64; at most {MOST_BYTES / 2**30:.0f} GiB are made"
        )
    size = case.parameters.get("size")
    if case.breaks is not None and isinstance(size, int) and size > _MOST_SIZE:
        raise CaseError(f"parameters.size: got {size}; a dimension is at most {_MOST_SIZE}")


_MOST_SIZE = 2**14
"""To which a call that is to be refused may have one dimension changed."""
