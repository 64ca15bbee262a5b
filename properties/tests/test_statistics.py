"""Statistics find what no bound on single elements can, and say what they found."""

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from properties.cases.case import Bias, Blocks, Case, Segments
from properties.claims import checks, statistics
from properties.commands import replay
from properties.faults.planting import Edit, edited, planted
from properties.judging.targets import KERNEL, Target
from properties.session import failure
from properties.tests import variants

NARROW = Case(1, 2, 256, 384, 64, dtype="bfloat16", sm_scale=0.125)
WIDE = replace(NARROW, dtype="float32")
TILES = replace(
    NARROW,
    q_len=384,
    block_sizes=Blocks(*(128, 128, 128, 1), *(128, 128, 128, 128), *(128, 128, 128)),
)


def _helper(module: str, lines: str) -> tuple[Edit, ...]:
    """Puts a function into a module of the kernel, before one that is there."""
    first = {"forward": "def _seen(", "backward": "def _scaled("}[module]
    return (Edit(module, first, f"{lines}\n\n{first}"),)


# exp that is right to 18 bits: relative errors of up to 4e-6, where float32 has 6e-8.
_EXP = "def _exp2(x):\n    p = lax.exp2(x)\n    return p * 65.0 - (p * 65.0 - p)\n"
# A cast that cuts where it should round.
_CUT = """def _cut(x, dtype):
    if dtype == jnp.float32:
        return x
    bits = lax.bitcast_convert_type(x, jnp.uint32) & np.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(bits, jnp.float32).astype(dtype)
"""
_DQ = "dq_acc[i, :, queries] += tile.over_all_keys(refs, refs.k[keys, :], ds)"
_WHOLE_DQ = "_scaled(call, tile.transposed(dq_acc[i]))"
_DOT = "    return lax.dot_general("
_THREE_PRODUCTS = f"""    if a.dtype == jnp.float32:
        def parts(x):
            high = x.astype(jnp.bfloat16)
            return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)
        (a1, a2), (b1, b2) = parts(a), parts(b)
        return (
            matmul(a1, b2, contract) + matmul(a2, b1, contract) + matmul(a1, b1, contract)
        )
{_DOT}"""

FAULTS: dict[str, tuple[Case, set[str], tuple[Edit, ...]]] = {
    "exp of the forward to 18 bits": (
        WIDE,
        {"o likely", "o rms", "o paired"},
        (Edit("forward", "lax.exp2(", "_exp2(", 2), *_helper("forward", _EXP)),
    ),
    "exp of the backward to 18 bits": (
        replace(WIDE, bias=Bias("float32", "normal")),
        {"dv rms", "dv paired", "dab rms"},
        (Edit("backward", "lax.exp2(", "_exp2("), *_helper("backward", _EXP)),
    ),
    "products of three bfloat16 products": (
        WIDE,
        {"o row", "m likely", "l rms", "dq likely", "dq row", "dk row"},
        (Edit("tile", _DOT, _THREE_PRODUCTS),),
    ),
    "weights cut to bfloat16": (
        NARROW,
        {"o rms", "o bias", "o paired"},
        (
            Edit("forward", "p.astype(v.dtype)", "_cut(p, v.dtype)"),
            *_helper("forward", _CUT),
        ),
    ),
    "gradients cut to bfloat16": (
        NARROW,
        {"dq rms", "dq bias", "dq paired"},
        (
            Edit(
                "backward", f"{_WHOLE_DQ}.astype(dq_ref.dtype)", f"_cut({_WHOLE_DQ}, dq_ref.dtype)"
            ),
            *_helper("backward", _CUT),
        ),
    ),
    "dq gathered in bfloat16": (
        TILES,
        {"dq paired"},
        (
            Edit(
                "backward",
                _DQ,
                _DQ.replace("+=", "= (dq_acc[i, :, queries] +") + ")"
                ".astype(jnp.bfloat16).astype(jnp.float32)",
            ),
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_finds_what_the_bounds_allow(fault: str) -> None:
    case, found_by, edits = FAULTS[fault]
    target = planted(edited(edits), fault)

    assert checks.gradients(case, target, "numpy").failure is None
    result = checks.statistics(case, target, "numpy")
    found = {verdict.output for verdict in result.verdicts if not verdict.passed}
    assert found >= found_by


def test_each_kind_of_statistic_is_needed() -> None:
    found = {name.split()[1] for _, found_by, _ in FAULTS.values() for name in found_by}

    assert found == set(statistics.KINDS)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dtype": "float32", "causal": True, "bias": Bias("bfloat16", "normal")},
        {"causal": True, "bias": Bias("float32", "normal"), "block_sizes": TILES.block_sizes},
        # The queries from 128 on see no key before 192: a row that sees nothing is left out.
        {
            "causal": True,
            "segments": Segments("int32", (((0, 128), (1, 128)),), (((0, 192), (1, 192)),)),
        },
    ],
)
def test_kernel_passes(fields: dict[str, Any]) -> None:
    if "block_sizes" in fields:
        fields = {"q_len": 384, **fields}
    for masked_rows in ("zero", "any"):
        target = Target.load(KERNEL, masked_rows)
        result = checks.statistics(replace(NARROW, **fields), target, "numpy")
        assert result.failure is None
        assert not result.skipped


@pytest.mark.parametrize(
    "fields",
    [
        {"values": "integers"},
        {"q_len": 9},
        {"head_dim": 8},
        {"sm_scale": 1.0},
        {"bias": Bias("float32", "constant")},
    ],
)
def test_says_nothing_of_other_cases(fields: dict[str, Any]) -> None:
    result = checks.statistics(replace(NARROW, **fields), Target.load(KERNEL), "numpy")

    assert "no case for statistics" in result.skipped
    assert not result.verdicts


def test_target_without_gradients_is_judged_by_its_output() -> None:
    target = replace(Target.load(KERNEL), features=frozenset(), residuals=None)
    result = checks.statistics(NARROW, target, "numpy")

    assert result.failure is None
    assert {verdict.output.split()[0] for verdict in result.verdicts} == {"o"}


def test_wrong_result_is_reported_as_such() -> None:
    target = Target.load(f"{variants.__name__}:rounds_operands_unsaid")
    result = checks.statistics(WIDE, target, "numpy")

    assert result.failure is not None
    assert result.failure.output == "o"
    assert not any(" " in verdict.output for verdict in result.verdicts)


def _failure(monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """The name of a target that fails statistics alone, and the report of its failure."""
    case, _, edits = FAULTS["weights cut to bfloat16"]
    target = planted(edited(edits), f"{variants.__name__}:cuts_weights")
    monkeypatch.setattr(variants, "cuts_weights", target, raising=False)
    result = checks.statistics(case, target, "numpy")
    assert result.failure is not None
    return target.name, failure.report(result, target, result.failure)


def test_failure_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = _failure(monkeypatch)
    text = failure.text(report)

    assert text.startswith("statistics: o rms is off: errors are ")
    assert "at most 1.15 in a correct kernel; worst row [0, " in text


def test_failure_replays(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    name, report = _failure(monkeypatch)
    request = replay.parse(json.dumps(report), tmp_path)

    (again,) = replay.run(request, name, None, None)

    assert again.failure is not None
    assert again.failure.to_dict() == report["verdict"]
