"""How much of the space of cases has been visited, in pairs of feature values.

`features` puts a case into classes (a length into tiny, one below a tile, ...; blocks into whole,
dividing, ragged).  Faults of a kernel mostly need two features at once, so what is counted is pairs
of values of different features: N visited of M that some case of the space can show.

M is not estimated.  `legal_pairs` goes through every combination of dimensions that the strategies
can draw and, for each, through the same lists of options that they choose from.  Options that
depend on one another are kept together (a bundle: scale and bias, the two blocks of a kernel over
queries); those of different bundles are drawn independently and pair freely.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

from properties.cases import values
from properties.cases.case import DTYPES, SEGMENT_DTYPES, Blocks, Case, Segments
from properties.drawing import space

Atom = tuple[str, str]
"""A feature and its value."""

Pair = tuple[Atom, Atom]
"""Two atoms of different features, in the order of the features' names."""


def features(case: Case) -> dict[str, str]:
    """The classes a case falls into; features of what it does not have are left out."""
    found = _dimensions(case.batch, case.heads, case.q_len, case.kv_len, case.head_dim)
    found["dtype"] = case.dtype
    found["causal"] = str(case.causal)
    found["scale"] = scale_class(case.sm_scale, case.head_dim)
    found["values"] = case.values
    found["bias"] = "none"
    if case.bias is not None:
        found["bias"], found["bias_dtype"] = case.bias.family, case.bias.dtype
    found["segments"] = "none"
    if case.segments is not None:
        found["segments"] = segment_layout(case.segments)
        found["segment_ids"] = segment_style(case.segments)
        found["segment_dtype"] = case.segments.dtype
    found["blocks"] = "none"
    if case.block_sizes is not None:
        found |= _blocks(case.block_sizes, case.q_len, case.kv_len, case.batch)
    return found


def pairs(case: Case) -> Iterator[Pair]:
    """Every pair of feature values that a case shows."""
    return combinations(sorted(features(case).items()), 2)


class Coverage:
    """The pairs that the cases of a run have visited, of those that `legal_pairs` lists."""

    def __init__(self, of: space.Space | None = None) -> None:
        self.legal = legal_pairs(of or space.Space())
        self.visited: set[Pair] = set()

    def add(self, case: Case) -> None:
        """Counts a case; one that breaks a rule never reaches a kernel and visits nothing."""
        if case.breaks is None:
            self.visited.update(pair for pair in pairs(case) if pair in self.legal)

    def to_data(self) -> list[list[list[str]]]:
        """What was visited, as JSON's types."""
        return [[list(first), list(second)] for first, second in sorted(self.visited)]

    def to_map(self) -> dict[str, list[Any]]:
        """The pairs as a triangle, in JSON's types: the atoms in order, and for each a row with a
        character for every atom before it: "1" visited, "0" not visited, "." not in the space."""
        atoms = sorted({atom for pair in self.legal for atom in pair})
        rows = [
            "".join(
                "." if (other, atom) not in self.legal else str(int((other, atom) in self.visited))
                for other in atoms[:number]
            )
            for number, atom in enumerate(atoms)
        ]
        return {"atoms": [list(atom) for atom in atoms], "rows": rows}

    def merge(self, data: Iterable[Sequence[Sequence[str]]]) -> None:
        """Adds what another process visited, from its `to_data`."""
        for (name, value), (other_name, other_value) in data:
            self.visited.add(((name, value), (other_name, other_value)))


def length_class(length: int) -> str:
    """A length as it lies to the tiles of 128."""
    if length == 1:
        return "1"
    if length < space.LANES - 1:
        return "short"
    below, above = length % space.LANES == space.LANES - 1, length % space.LANES == 1
    if below or above:
        return "one below tiles" if below else "one above tiles"
    if length % space.LANES:
        return "ragged"
    return "one tile" if length == space.LANES else "tiles"


def scale_class(sm_scale: float, head_dim: int) -> str:
    """A scale by what may go wrong with it."""
    if sm_scale == 0.0:
        return "zero"
    if sm_scale < 0.0:
        return "negative"
    if sm_scale == 1.0:
        return "one"
    if sm_scale == space.usual_scale(head_dim):
        return "usual"
    return "tiny" if sm_scale < 1e-4 else "odd"


def segment_layout(segments: Segments) -> str:
    """The layout of `space.SEGMENT_LAYOUTS` that segment ids show."""
    q, kv = segments.q[0], segments.kv[0]
    if any(row != q for row in segments.q) or any(row != kv for row in segments.kv):
        return "rows_differ"
    q_ids, kv_ids = [number for number, _ in q], [number for number, _ in kv]
    if not set(q_ids) & set(kv_ids):
        return "disjoint"
    if set(q_ids) != set(kv_ids):
        return "unseen"
    if len(set(q_ids)) < len(q_ids) or len(set(kv_ids)) < len(kv_ids):
        return "returning"
    if len(q_ids) >= 5:
        return "many"
    if len(q_ids) == 1:
        return "one"
    return "shared" if q[:-1] == kv[:-1] else "unequal"


def segment_style(segments: Segments) -> str:
    """How segments are numbered, as `space.segment_styles` has it."""
    ids = [number for row in segments.q + segments.kv for number, _ in row]
    if min(ids) < 0:
        return "negative"
    if max(ids) > np.iinfo(segments.dtype).max // 2:
        return "huge"
    for q, kv in zip(segments.q, segments.kv, strict=True):
        first_seen = list(dict.fromkeys(number for number, _ in q + kv))
        if first_seen != sorted(first_seen):
            return "unsorted"
    return "counting"


def _dimensions(batch: int, heads: int, q_len: int, kv_len: int, head_dim: int) -> dict[str, str]:
    order = "q shorter" if q_len < kv_len else "q longer" if q_len > kv_len else "equal"
    return {
        "batch": str(batch),
        "heads": str(heads),
        "q_len": length_class(q_len),
        "kv_len": length_class(kv_len),
        "lengths": order,
        "head_dim": length_class(head_dim),
    }


def _q_class(block: int, q_len: int) -> str:
    if block >= q_len:
        return "whole"
    return "ragged" if q_len % block else "dividing"


def _k_class(major: int, minor: int, kv_len: int) -> str:
    several_majors, several_minors = major < kv_len, minor < major
    if several_majors:
        return "majors of minors" if several_minors else "majors"
    return "minors" if several_minors else "whole"


def _b_class(block: int, batch: int) -> str:
    if block == 1:
        return "one"
    return "ragged" if batch % block else "dividing"


def _inner_q_class(major: int, minor: int) -> str:
    return "minors" if minor < major else "whole"


def _blocks(blocks: Blocks, q_len: int, kv_len: int, batch: int) -> dict[str, str]:
    found = {
        "blocks": "both" if blocks.backward else "forward",
        "block_q": _q_class(blocks.block_q, q_len),
        "block_k": _k_class(blocks.block_k_major, blocks.block_k, kv_len),
        "block_b": _b_class(blocks.block_b, batch),
    }
    given = blocks.fields()
    if blocks.backward:
        q_major, k_major = given["block_q_major_dkv"], given["block_k_major_dkv"]
        found["dkv_q"] = _q_class(q_major, q_len)
        found["dkv_inner_q"] = _inner_q_class(q_major, given["block_q_dkv"])
        found["dkv_k"] = _k_class(k_major, given["block_k_dkv"], kv_len)
        found["dq_q"] = _q_class(given["block_q_dq"], q_len)
        found["dq_k"] = _k_class(given["block_k_major_dq"], given["block_k_dq"], kv_len)
    return found


Bundle = frozenset[frozenset[Atom]]
"""What one group of dependent choices can show: the sets of atoms that occur together."""


def _bundle(joint: Iterable[dict[str, str]]) -> Bundle:
    return frozenset(frozenset(atoms.items()) for atoms in joint)


@functools.cache
def legal_pairs(of: space.Space) -> frozenset[Pair]:
    """Every pair of feature values that some case of a space shows."""
    every = contexts(of)
    atoms = sorted({atom for context in every for bundle in context for atom in _reach(bundle)})
    # Sets of atoms as the bits of an integer: there are thousands of contexts to unite.
    bit = {atom: 1 << number for number, atom in enumerate(atoms)}
    reach: dict[Bundle, int] = {}
    together: dict[Bundle, dict[Atom, int]] = {}
    for bundle in {bundle for context in every for bundle in context}:
        reach[bundle] = sum(bit[atom] for atom in _reach(bundle))
        together[bundle] = {
            atom: sum(bit[other] for other in _reach(joint for joint in bundle if atom in joint))
            for atom in _reach(bundle)
        }
    partners = dict.fromkeys(atoms, 0)
    for context in every:
        everything = sum(reach[bundle] for bundle in context)
        for bundle in context:
            elsewhere = everything ^ reach[bundle]
            for atom, joint in together[bundle].items():
                partners[atom] |= elsewhere | joint
    return frozenset(
        (atom, other)
        for atom, other in combinations(atoms, 2)
        if partners[atom] & bit[other] and atom[0] != other[0]
    )


def _reach(bundle: Iterable[frozenset[Atom]]) -> frozenset[Atom]:
    """Every atom of a bundle, alone or together with others."""
    return frozenset[Atom]().union(*bundle)


def contexts(of: space.Space) -> set[tuple[Bundle, ...]]:
    """The bundles of every combination of dimensions and of what the explicit blocks cover."""
    free = [
        _bundle({"dtype": dtype} for dtype in of.dtypes),
        _bundle({"causal": str(causal)} for causal in ((False, True) if of.causal else (False,))),
        _bundle({"values": family} for family in values.FAMILIES),
    ]
    modes = space.block_modes(of.backward) if of.block_sizes else (None,)
    found = set()
    for q_len, kv_len in product(of.q_lengths, of.kv_lengths):
        for batch in space.batches(q_len, kv_len):
            segments = _segments_bundle(of.segments, *space.segment_layouts(q_len, kv_len, batch))
            blocks = [_block_bundles(mode, q_len, kv_len, batch) for mode in modes]
            for heads in space.head_counts(q_len, kv_len, batch):
                for head_dim in space.head_dims(q_len, kv_len, batch, heads, of):
                    dimensions = _bundle([_dimensions(batch, heads, q_len, kv_len, head_dim)])
                    scales = _scale_bundle(of.bias, head_dim)
                    for of_mode in blocks:
                        found.add((dimensions, *free, scales, segments, *of_mode))
    return found


@functools.cache
def _scale_bundle(bias: bool, head_dim: int) -> Bundle:
    joint = []
    for sm_scale in space.scales(head_dim):
        scale = {"scale": scale_class(sm_scale, head_dim)}
        joint.append({**scale, "bias": "none"})
        if bias:
            for family, dtype in product(space.bias_families(sm_scale), DTYPES):
                joint.append({**scale, "bias": family, "bias_dtype": dtype})
    return _bundle(joint)


@functools.cache
def _segments_bundle(segments: bool, *layouts: str) -> Bundle:
    joint = [{"segments": "none"}]
    if segments:
        for layout, dtype in product(layouts, SEGMENT_DTYPES):
            for style in space.segment_styles(layout, dtype):
                joint.append({"segments": layout, "segment_dtype": dtype, "segment_ids": style})
    return _bundle(joint)


@functools.cache
def _block_bundles(mode: str | None, q_len: int, kv_len: int, batch: int) -> tuple[Bundle, ...]:
    if mode is None:
        return (_bundle([{"blocks": "none"}]),)
    over_q = {_q_class(block, q_len) for block in space.q_blocks(q_len)}
    over_k = {
        _k_class(major, minor, kv_len)
        for major in space.k_major_blocks(kv_len)
        for minor in space.k_minor_blocks(major)
    }
    over_b = {_b_class(block, batch) for block in range(1, batch + 1)}
    forward = [
        _bundle([{"blocks": mode}]),
        _bundle({"block_q": kind} for kind in over_q),
        _bundle({"block_k": kind} for kind in over_k),
        _bundle({"block_b": kind} for kind in over_b),
    ]
    if mode == "forward":
        return tuple(forward)
    dkv_q = [
        {"dkv_q": _q_class(major, q_len), "dkv_inner_q": _inner_q_class(major, minor)}
        for major in space.q_blocks(q_len)
        for minor in space.q_minor_blocks(major)
    ]
    backward = [
        _bundle(dkv_q),
        _bundle({"dkv_k": kind} for kind in over_k),
        _bundle({"dq_q": kind} for kind in over_q),
        _bundle({"dq_k": kind} for kind in over_k),
    ]
    return tuple(forward + backward)
