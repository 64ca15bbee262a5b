"""What is under test: an attention callable or an adapter, brought to one form.

`Target.load("MODULE:NAME")` imports what the name says and nothing else. A bare callable is taken
to have the signature of `kernel.flash_attention` and to support all that this signature says. An
adapter is any object (a module or a class instance) with

    call            callable with the signature of `kernel.flash_attention`; the only required one
    dtypes          tuple of dtype names it claims, default ("float32", "bfloat16")
    features        what it claims, names from `FEATURES`, default all of them
    masked_rows     "zero" or "any": what a row without a visible key gives, default "any"
    residuals       callable with the arguments of `call`, except debug, that gives what the
                    backward starts from: (o, l, m) or (o, lse), with l, m, lse of shape
                    [batch, heads, q_len] and float32; default None
    arithmetic      mapping of arguments of `oracle.Arithmetic.of` that differ from the default
                    model, for example {"sums_rounded_p": True} or {"exp_ulps": 4}; default {}
    BlockSizes, SegmentIds   taken from the adapter, else from its module, else from `kernel`

What an adapter does not claim is not asked of it.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax

import oracle
from properties.cases.case import BACKWARD_BLOCKS, FORWARD_BLOCKS, Blocks, Case

KERNEL = "kernel:flash_attention"
MaskedRows = Literal["zero", "any"]
FEATURES = frozenset({"causal", "bias", "segments", "block_sizes", "gradients", "bias_gradient"})

_CONFIG: Any = jax.config  # its options are not in its type

# The most that functions of float32 are off on any TPU from v2 to TPU7x, in units in the last
# place, by exhaustive test: "Numerical accuracy" in the documentation of JAX, of September 2026.
# They are those of XLA; that kernels of Pallas have the same ones is an assumption.
_ON_A_TPU = {"exp_ulps": 116.0, "reciprocal_ulps": 198.0, "log_ulps": 4030.5}

# Lanes of a TPU register: a tile that a target chooses by itself holds at least so many keys.
_LANES = 128


class TargetError(ValueError):
    """What `--target` names cannot be used; the message is one line for the user."""


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """An attention function with what it claims. Two are the same only if they are one object.

    `strict` targets are held to the whole contract. The others may refuse any call by ValueError,
    TypeError or NotImplementedError, as long as they refuse shapes that contradict each other.
    """

    name: str
    call: Callable[..., Any]
    block_sizes: Callable[..., Any]
    segment_ids: Callable[..., Any]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    features: frozenset[str] = FEATURES
    masked_rows: MaskedRows = "any"
    residuals: Callable[..., Any] | None = None
    arithmetic_differs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    strict: bool = False

    @classmethod
    def load(cls, name: str, masked_rows: MaskedRows | None = None) -> "Target":
        """Imports `MODULE:NAME`. `masked_rows` overrides what the target claims.

        Raises TargetError, with one line that says what is wrong, if that cannot be done.
        """
        module, found = _import(name)
        if isinstance(found, Target):
            target = found
        else:
            target = of_kernel(module) if name == KERNEL else _adapt(name, module, found)
        return dataclasses.replace(target, masked_rows=masked_rows or target.masked_rows)

    @property
    def restrictions(self) -> dict[str, Any]:
        """The arguments of `strategies.cases` that keep it within the claims."""
        features = ("causal", "bias", "segments", "block_sizes")
        return {"dtypes": self.dtypes} | {name: name in self.features for name in features}

    def unclaimed(self, case: Case) -> str | None:
        """Why this case lies outside the claims, None if it does not."""
        if case.dtype not in self.dtypes:
            return f"{self.name} does not claim {case.dtype}"
        asked = {
            "causal": case.causal,
            "bias": case.bias is not None,
            "segments": case.segments is not None,
            "block_sizes": case.block_sizes is not None,
        }
        for feature, present in asked.items():
            if present and feature not in self.features:
                return f"{self.name} does not claim {feature}"
        return None

    def default_blocks(self, case: Case) -> Blocks | None:
        """What `get_default` of its BlockSizes gives for the shape, None if it has no such."""
        get_default = getattr(self.block_sizes, "get_default", None)
        if get_default is None:
            return None
        found = get_default(case.batch, case.heads, case.q_len, case.kv_len, case.head_dim)
        return Blocks(
            **{name: getattr(found, name) for name in (*FORWARD_BLOCKS, *BACKWARD_BLOCKS)}
        )

    def arithmetic(self, case: Case, mode: str) -> oracle.Arithmetic:
        """The arithmetic model by which this case is judged when it runs in `mode`.

        The engines that run on a CPU keep the operands of float32 products, and their functions
        round well. On a TPU operands follow `jax.default_matmul_precision`, and functions are
        rough.
        """
        blocks = case.block_sizes
        model: dict[str, Any] = {
            "kv_tiles": _tiles(case.kv_len, blocks, "block_k", "block_k_dq"),
            "q_tiles": _tiles(case.q_len, blocks, "block_q_dkv"),
            "scaled": case.sm_scale != 1.0,
        }
        if mode == "tpu":
            precision = _CONFIG.jax_default_matmul_precision
            model |= _ON_A_TPU | {"operands": _tpu_operands(precision)}
        return oracle.Arithmetic.of(case.dtype, **(model | dict(self.arithmetic_differs)))


def _import(name: str) -> tuple[Any, Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise TargetError(f"target {name!r} is not of the form MODULE:NAME, as in {KERNEL!r}")
    try:
        module = importlib.import_module(module_name)
    # Importing runs a stranger's code, which may raise anything, or exit.
    except (Exception, SystemExit) as error:
        summary = " ".join(str(error).split())
        raise TargetError(
            f"target {name!r}: importing {module_name!r} raised {type(error).__name__}: {summary}"
        ) from error
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TargetError(f"target {name!r}: {module_name!r} has no {attribute!r}") from None
    return module, found


def of_kernel(package: Any, name: str = KERNEL) -> Target:
    """The target that `package`, which is `kernel` or an instance of it, has, held to the whole
    contract."""
    return Target(
        name=name,
        call=package.flash_attention,
        block_sizes=package.BlockSizes,
        segment_ids=package.SegmentIds,
        masked_rows="zero",
        residuals=package.attention_residuals,
        strict=True,
    )


def _adapt(name: str, module: Any, found: Any) -> Target:
    call = getattr(found, "call", found)
    if not callable(call):
        raise TargetError(
            f"target {name!r} is {type(found).__name__}: neither callable nor an adapter with a "
            "`call`"
        )
    features = frozenset(getattr(found, "features", FEATURES))
    if unknown := sorted(features - FEATURES):
        raise TargetError(
            f"target {name!r} claims unknown features {unknown}; known are {sorted(FEATURES)}"
        )
    masked_rows: Any = getattr(found, "masked_rows", "any")
    if masked_rows not in get_args(MaskedRows):
        raise TargetError(
            f"target {name!r}: masked_rows must be 'zero' or 'any', got {masked_rows!r}"
        )
    return Target(
        name=name,
        call=call,
        block_sizes=_class_of(found, module, "BlockSizes"),
        segment_ids=_class_of(found, module, "SegmentIds"),
        dtypes=tuple(getattr(found, "dtypes", ("float32", "bfloat16"))),
        features=features,
        masked_rows=masked_rows,
        residuals=getattr(found, "residuals", None),
        arithmetic_differs=dict(getattr(found, "arithmetic", {})),
    )


def _class_of(found: Any, module: Any, name: str) -> Callable[..., Any]:
    for owner in (found, module):
        if hasattr(owner, name):
            return getattr(owner, name)
    return getattr(importlib.import_module("kernel"), name)


def _tpu_operands(precision: str | None) -> str:
    """What a TPU reads float32 operands as, in the words of `oracle.Arithmetic.of`.

    precision: that of `jax.default_matmul_precision`; it is for float32 alone.
    """
    if precision in (None, "default", "bfloat16", "BF16_BF16_F32"):
        return "bfloat16"
    if precision in ("high", "tensorfloat32", "BF16_BF16_F32_X3"):
        return "bfloat16x3"
    return "bfloat16x6"


def _tiles(length: int, blocks: Any, *fields: str) -> int:
    """How many tiles a loop over `length` takes at most, by the smallest block that is given."""
    given = [getattr(blocks, field, None) for field in fields]
    return max(math.ceil(length / (block or _LANES)) for block in given)
