"""Rules on block sizes: those of their construction, then those that lengths impose."""

from itertools import product

from properties.cases.case import BACKWARD_BLOCKS, FORWARD_BLOCKS, Case, CaseError
from properties.drawing.breaking.arguments import (
    K_MAJOR_BLOCKS,
    K_MINOR_BLOCKS,
    MAJOR_OF,
    MINOR_OF,
    Q_BLOCKS,
    Call,
)
from properties.drawing.breaking.breaker import Ways, breaks, each
from properties.drawing.breaking.odd_values import odd_value

_NO_BLOCKS = ("8.0", "'8'", "True", "[]", "np.float32(8)", "np.True_", "np.array([8])")


def _block_types(case: Case) -> Ways:
    for field in FORWARD_BLOCKS + BACKWARD_BLOCKS:
        # None is no integer either, but in the backward it says that the block is not given.
        nones = ("None",) if field in FORWARD_BLOCKS else ()
        for value in _NO_BLOCKS + nones:
            yield {"field": field, "value": value}


@breaks("block_type", _block_types)
@breaks(
    "block_positive",
    each(field=FORWARD_BLOCKS + BACKWARD_BLOCKS, value=("0", "-1", "np.int64(0)")),
)
def _block_value(made: Call, field: str, value: str) -> None:
    made.whole_blocks()
    made.blocks[_known(field)] = odd_value(value)


@breaks("minor_exceeds", each(field=tuple(MAJOR_OF), major=(8, 1, 128), factor=(2, 3)))
def _minor_exceeds(made: Call, field: str, major: int, factor: int) -> None:
    made.set_block(MAJOR_OF[_known(field)], major)
    made.blocks[field] = major * factor


@breaks("minor_divides", each(field=tuple(MAJOR_OF), sizes=([3, 2], [24, 16], [384, 256])))
def _minor_divides(made: Call, field: str, sizes: list[int]) -> None:
    major, minor = sizes
    made.set_block(MAJOR_OF[_known(field)], major)
    made.blocks[field] = minor


@breaks("backward_partial", each(given=(True, False), field=BACKWARD_BLOCKS))
def _backward_partial(made: Call, given: bool, field: str) -> None:
    """One block of the backward given and the others not, or the other way round."""
    made.whole_blocks()
    for name in BACKWARD_BLOCKS:
        if (name == field) != given:
            del made.blocks[name]


@breaks(
    "block_sizes_type",
    each(value=("(128, 128, 128, 1)", "1", "'no'", "[]", "{}", "True", "object")),
)
def _block_sizes_type(made: Call, value: str) -> None:
    made.blocks = {}
    made.arguments["block_sizes"] = odd_value(value)


def _differentiated(case: Case) -> Ways:
    names = ("q", "k", "v") if case.bias is None else ("q", "k", "v", "ab")
    return ({"gradient_of": [name]} for name in names)


@breaks("backward_missing", _differentiated)
def _backward_missing(made: Call, gradient_of: list[str]) -> None:
    if made.blocks:
        made.blocks = {name: made.blocks[name] for name in FORWARD_BLOCKS}
    else:
        made.whole_blocks(backward=False)


def _misaligned(case: Case) -> Ways:
    sizes = {1, 4, 7, 9, 12, 127, case.q_len // 2, case.q_len - 1}
    for field, size in product(Q_BLOCKS, sorted(sizes)):
        if 0 < size < case.q_len and size % 8:
            yield {"field": field, "size": size}


@breaks("q_block_align", _misaligned, q_lengths=(2, 7, 8, 9, 24, 128, 129))
def _q_block_align(made: Call, field: str, size: int) -> None:
    made.set_block(_known(field), size)


def _longer(case: Case) -> Ways:
    """The next multiple of 8 (off by one tile at the edge), the one after it, and far beyond."""
    following = case.q_len // 8 * 8 + 8
    for field, size in product(Q_BLOCKS, (following, following + 8, following + 1024)):
        yield {"field": field, "size": size}


@breaks("q_block_exceeds", _longer)
def _q_block_exceeds(made: Call, field: str, size: int) -> None:
    made.set_block(_known(field), size)


def _narrow(case: Case) -> Ways:
    divisors = [case.kv_len // parts for parts in (2, 4, 5, 8) if case.kv_len % parts == 0]
    for field, size in product(K_MINOR_BLOCKS, dict.fromkeys([*divisors, 1])):
        if size % 128 and size != case.kv_len:
            yield {"field": field, "size": size}


@breaks("k_block_align", _narrow, kv_lengths=(2, 7, 8, 128, 200, 256, 384))
def _k_block_align(made: Call, field: str, size: int) -> None:
    made.set_block(MAJOR_OF[_known(field)], made.case.kv_len)
    made.blocks[field] = size


def _too_long_major(case: Case) -> Ways:
    following = case.kv_len // 128 * 128 + 128
    sizes = ([following, 128], [following, following], [2 * case.kv_len, case.kv_len])
    for field, pair in product(K_MAJOR_BLOCKS, sizes):
        yield {"field": field, "sizes": pair}


@breaks("k_major_exceeds", _too_long_major)
@breaks(
    "k_major_divides",
    lambda case: (
        {"field": field, "sizes": pair}
        for field, pair in product(K_MAJOR_BLOCKS, ([128, 128], [256, 128], [256, 256]))
        if pair[0] < case.kv_len and case.kv_len % pair[0]
    ),
    kv_lengths=(129, 200, 255, 257, 384),
)
def _k_major(made: Call, field: str, sizes: list[int]) -> None:
    major, minor = sizes
    made.set_block(_known(field), major)
    made.blocks[MINOR_OF[field]] = minor


@breaks("block_b_exceeds", each(excess=(1, 2, 128)))
def _block_b_exceeds(made: Call, excess: int) -> None:
    made.set_block("block_b", made.case.batch + excess)


def _known(field: str) -> str:
    if field not in FORWARD_BLOCKS + BACKWARD_BLOCKS:
        raise CaseError(f"parameters.field: {field!r} is no field of BlockSizes")
    return field
