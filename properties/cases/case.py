"""A case as data: one call of an attention function, read from and written to JSON.

A case is complete: the same case gives the same arrays on every platform (see `values`).  Reading
is strict, because a case is what people mail to one another: an unknown field, a wrong type or a
number that JSON cannot hold is a `CaseError` of one line that names the field.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oracle.contract import RULES
from properties.cases import records, tensors, values
from properties.cases.records import CaseError

SCHEMA = 1
DTYPES = ("float32", "bfloat16")
SEGMENT_DTYPES = ("int32", "int8", "int16", "uint8", "uint16", "uint32")

FORWARD_BLOCKS = ("block_q", "block_k_major", "block_k", "block_b")
BACKWARD_BLOCKS = (
    *("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv"),
    *("block_k_major_dq", "block_k_dq", "block_q_dq"),
)

Run = tuple[int, int]
"""(segment id, how many neighbouring positions have it)."""


@dataclass(frozen=True)
class Bias:
    """The additive bias ab: its dtype and its family, one of `values.BIAS_FAMILIES`."""

    dtype: str
    family: str


@dataclass(frozen=True)
class Segments:
    """Segment ids of queries and keys, run-length encoded, one sequence of runs per batch row."""

    dtype: str
    q: tuple[tuple[Run, ...], ...]
    kv: tuple[tuple[Run, ...], ...]


@dataclass(frozen=True)
class Blocks:
    """The fields of `BlockSizes`; the backward's are None where a call has forward blocks only."""

    block_q: int
    block_k_major: int
    block_k: int
    block_b: int
    block_q_major_dkv: int | None = None
    block_k_major_dkv: int | None = None
    block_k_dkv: int | None = None
    block_q_dkv: int | None = None
    block_k_major_dq: int | None = None
    block_k_dq: int | None = None
    block_q_dq: int | None = None

    @property
    def backward(self) -> bool:
        """Whether every block of the backward is given."""
        return all(getattr(self, name) is not None for name in BACKWARD_BLOCKS)

    def fields(self) -> dict[str, int]:
        """Names and values of the blocks that are given."""
        return {name: size for name, size in vars(self).items() if size is not None}


class Arrays(NamedTuple):
    """The arrays of a case.

    q, do: [B, H, Sq, D]; k, v: [B, H, Skv, D], all of the case's dtype.  ab: [B, H, Sq, Skv] of the
    bias's dtype, or None.  q_segment_ids: [B, Sq], kv_segment_ids: [B, Skv], or both None.
    bfloat16 is `ml_dtypes.bfloat16`.  do is the cotangent of the output.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    ab: np.ndarray | None
    q_segment_ids: np.ndarray | None
    kv_segment_ids: np.ndarray | None
    do: np.ndarray


class Configuration(NamedTuple):
    """All of a case that is static when a call is traced: cases that share it share a program."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str
    causal: bool
    sm_scale: float
    bias_dtype: str | None
    segment_dtype: str | None
    block_sizes: Blocks | None


@dataclass(frozen=True, repr=False)
class Case:
    """One call, and what a property needs beside it: the fields of the case format, schema 1."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str = "float32"
    causal: bool = False
    sm_scale: float = 1.0
    bias: Bias | None = None
    segments: Segments | None = None
    block_sizes: Blocks | None = None
    values: str = "normal"
    seed: int = 0
    breaks: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tensors: str | None = None
    folder: Path = field(default=Path(), compare=False)
    """Where the file that `tensors` names lies; not part of the JSON."""

    def __repr__(self) -> str:
        return f"Case.from_json({self.to_json()!r})"

    @classmethod
    def load(cls, path: str | Path) -> "Case":
        """The case in a JSON file; its tensors, if it has any, lie beside that file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CaseError(f"{path}: cannot be read ({error})") from None
        return cls.from_json(text, folder=path.parent)

    @classmethod
    def from_json(cls, source: str | Mapping[str, Any], folder: str | Path = "") -> "Case":
        """Reads a case from JSON text or from the mapping that such text holds.

        Raises CaseError for anything that is not a case of schema 1.
        """
        record = records.parsed(source) if isinstance(source, str) else source
        return _case(record, Path(folder))

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON's types; `breaks`, `parameters` and `tensors` only where set."""
        record: dict[str, Any] = {"schema": SCHEMA}
        for name in _REQUIRED:
            record[name] = getattr(self, name)
        if self.bias is not None:
            record["bias"] = vars(self.bias).copy()
        if self.segments is not None:
            record["segments"] = {
                "dtype": self.segments.dtype,
                "q": [[list(run) for run in row] for row in self.segments.q],
                "kv": [[list(run) for run in row] for row in self.segments.kv],
            }
        if self.block_sizes is not None:
            record["block_sizes"] = self.block_sizes.fields()
        if self.breaks is not None:
            record["breaks"] = self.breaks
        if self.parameters:
            record["parameters"] = dict(self.parameters)
        if self.tensors is not None:
            record["tensors"] = self.tensors
        return record

    def to_json(self) -> str:
        """The case as one line of JSON, from which `from_json` makes an equal case."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @property
    def configuration(self) -> Configuration:
        """What is static to a trace of this call; hashable."""
        return Configuration(
            self.batch,
            self.heads,
            self.q_len,
            self.kv_len,
            self.head_dim,
            self.dtype,
            self.causal,
            self.sm_scale,
            None if self.bias is None else self.bias.dtype,
            None if self.segments is None else self.segments.dtype,
            self.block_sizes,
        )

    def arrays(self) -> Arrays:
        """The arrays of the call and the cotangent, from `values` and `seed` or from `tensors`.

        Raises CaseError where the file of tensors is missing or does not fit the case.
        """
        source = values.Source(
            self.seed,
            self.batch,
            self.heads,
            self.q_len,
            self.kv_len,
            self.head_dim,
            self.sm_scale,
        )
        given = {} if self.tensors is None else self._read_tensors()
        if given:
            q, k, v = given["q"], given["k"], given["v"]
        else:
            family = values.FAMILIES[self.values]
            q, k, v = (values.rounded(tensor, self.dtype) for tensor in family(source))
        ab = given.get("ab")
        if self.bias is not None and ab is None:
            made = values.BIAS_FAMILIES[self.bias.family](source, self.bias.dtype)
            ab = values.rounded(made, self.bias.dtype)
        q_ids, kv_ids = given.get("q_segment_ids"), given.get("kv_segment_ids")
        if self.segments is not None and q_ids is None:
            q_ids = _ids(self.segments.q, self.segments.dtype)
            kv_ids = _ids(self.segments.kv, self.segments.dtype)
        do = given.get("do")
        if do is None:
            do = values.rounded(values.cotangent(source), self.dtype)
        return Arrays(q, k, v, ab, q_ids, kv_ids, do)

    def _read_tensors(self) -> dict[str, np.ndarray]:
        """The arrays that the file of tensors holds, of the shapes and dtypes of this case."""
        batch, heads, q_len, kv_len, head_dim = self.configuration[:5]
        of_queries, of_keys = (batch, heads, q_len, head_dim), (batch, heads, kv_len, head_dim)
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            "q": (self.dtype, of_queries),
            "k": (self.dtype, of_keys),
            "v": (self.dtype, of_keys),
            "do": (self.dtype, of_queries),
        }
        if self.bias is not None:
            expected["ab"] = (self.bias.dtype, (batch, heads, q_len, kv_len))
        if self.segments is not None:
            expected["q_segment_ids"] = (self.segments.dtype, (batch, q_len))
            expected["kv_segment_ids"] = (self.segments.dtype, (batch, kv_len))
        assert self.tensors is not None
        try:
            return tensors.read(self.folder / self.tensors, expected)
        except tensors.TensorError as error:
            raise CaseError(f"tensors: {error}") from None


def _ids(rows: Sequence[Sequence[Run]], dtype: str) -> np.ndarray:
    """Segment ids [B, S] from their runs."""
    return np.array(
        [np.repeat([number for number, _ in row], [length for _, length in row]) for row in rows],
        dtype=dtype,
    )


_REQUIRED = (
    *("batch", "heads", "q_len", "kv_len", "head_dim", "dtype", "causal", "sm_scale"),
    *("bias", "segments", "block_sizes", "values", "seed"),
)
_OPTIONAL = ("breaks", "parameters", "tensors")


def _case(record: object, folder: Path) -> Case:
    required = ("schema", *_REQUIRED)
    fields = records.record(record, "", required=required, optional=_OPTIONAL)
    schema = fields["schema"]
    if records.integer(schema, "schema", least=0) != SCHEMA:
        raise CaseError(f"schema: got {schema}; this program reads schema {SCHEMA}")
    batch, heads, q_len, kv_len, head_dim = (
        records.integer(fields[name], name, least=1)
        for name in ("batch", "heads", "q_len", "kv_len", "head_dim")
    )
    breaks = fields.get("breaks")
    if breaks is not None:
        records.choice(breaks, "breaks", RULES)
    return Case(
        batch=batch,
        heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=records.choice(fields["dtype"], "dtype", DTYPES),
        causal=records.boolean(fields["causal"], "causal"),
        sm_scale=_scale(fields["sm_scale"]),
        bias=_bias(fields["bias"]),
        segments=_segments(fields["segments"], batch, q_len, kv_len),
        block_sizes=_blocks(fields["block_sizes"]),
        values=records.choice(fields["values"], "values", values.FAMILIES),
        seed=records.integer(fields["seed"], "seed", least=0, below=2**64),
        breaks=breaks,
        parameters=_parameters(fields.get("parameters")),
        tensors=_file_name(fields.get("tensors")),
        folder=folder,
    )


def _bias(record: object) -> Bias | None:
    if record is None:
        return None
    fields = records.record(record, "bias", required=("dtype", "family"))
    return Bias(
        records.choice(fields["dtype"], "bias.dtype", DTYPES),
        records.choice(fields["family"], "bias.family", values.BIAS_FAMILIES),
    )


def _segments(record: object, batch: int, q_len: int, kv_len: int) -> Segments | None:
    if record is None:
        return None
    fields = records.record(record, "segments", required=("q", "kv"), optional=("dtype",))
    dtype = records.choice(fields.get("dtype", "int32"), "segments.dtype", SEGMENT_DTYPES)
    return Segments(
        dtype,
        _rows(fields["q"], "segments.q", dtype, batch, q_len),
        _rows(fields["kv"], "segments.kv", dtype, batch, kv_len),
    )


def _rows(
    rows: object, where: str, dtype: str, batch: int, length: int
) -> tuple[tuple[Run, ...], ...]:
    limits = np.iinfo(dtype)
    result = []
    for row_number, row in enumerate(records.items(rows, where)):
        runs = []
        for run_number, run in enumerate(records.items(row, f"{where}[{row_number}]")):
            place = f"{where}[{row_number}][{run_number}]"
            pair = records.items(run, place)
            if len(pair) != 2:
                raise CaseError(f"{place}: got {records.shown(run)}; expected [id, run length]")
            number = records.integer(
                pair[0], place, least=int(limits.min), below=int(limits.max) + 1
            )
            runs.append((number, records.integer(pair[1], place, least=1)))
        total = sum(run_length for _, run_length in runs)
        if total != length:
            raise CaseError(f"{where}[{row_number}]: runs cover {total} positions, not {length}")
        result.append(tuple(runs))
    if len(result) != batch:
        raise CaseError(f"{where}: {len(result)} rows, but batch is {batch}")
    return tuple(result)


def _blocks(record: object) -> Blocks | None:
    if record is None:
        return None
    fields = records.record(
        record, "block_sizes", required=FORWARD_BLOCKS, optional=BACKWARD_BLOCKS
    )
    sizes: dict[str, Any] = {}
    for name, size in fields.items():
        if size is not None or name in FORWARD_BLOCKS:
            sizes[name] = records.integer(size, f"block_sizes.{name}", least=1)
    return Blocks(**sizes)


def _scale(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CaseError(f"sm_scale: got {records.shown(value)}; expected a number")
    try:
        scale = float(value)
    except OverflowError:
        scale = math.inf
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.float32(scale))
    if not finite:
        raise CaseError(
            f"sm_scale: got {records.shown(value)}; expected a number finite in float32"
        )
    return scale


def _parameters(record: object) -> dict[str, Any]:
    if record is None:
        return {}
    if not isinstance(record, Mapping):
        raise CaseError(f"parameters: got {records.shown(record)}; expected an object")
    try:
        # Through JSON and back: a deep copy that refuses what a case file could not hold.
        return json.loads(json.dumps(dict(record), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise CaseError(f"parameters: {error}") from None


def _file_name(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value in ("", ".", "..") or {"/", "\\", "\0"} & set(value):
        raise CaseError(f"tensors: got {records.shown(value)}; expected the bare name of a file")
    return value
