"""What `--target` may name, and how it is brought to one form."""

import pathlib
from typing import Any

import pytest

from properties.cases.case import Bias, Blocks, Case, Segments
from properties.judging.targets import FEATURES, KERNEL, MaskedRows, Target, TargetError

UPSTREAM = "jax.experimental.pallas.ops.tpu.flash_attention:flash_attention"
SEGMENTS = Segments("int32", (((0, 8),),), (((0, 8),),))
BLOCKS = Blocks(8, 8, 8, 1)


def _module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_kernel_is_held_to_the_whole_contract_and_lets_its_residuals_be_read() -> None:
    target = Target.load(KERNEL)

    assert target.strict
    assert target.masked_rows == "zero"
    assert target.residuals is not None
    assert target.features == FEATURES


def test_bare_callable_claims_all_but_what_a_masked_row_gives() -> None:
    target = Target.load(UPSTREAM)

    assert not target.strict
    assert target.masked_rows == "any"
    assert target.residuals is None
    assert target.features == FEATURES
    assert target.block_sizes.__module__.startswith("jax.")
    assert target.segment_ids.__module__.startswith("jax.")


def test_classes_come_from_kernel_where_the_module_has_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module(tmp_path, monkeypatch, "plain_target", "def attend(*a, **k): ...\n")

    target = Target.load(f"{module}:attend")

    assert target.block_sizes.__module__.startswith("kernel")
    assert target.segment_ids.__module__.startswith("kernel")


def test_adapter_says_what_it_claims(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module(
        tmp_path,
        monkeypatch,
        "adapted_target",
        "class Adapter:\n"
        "    dtypes = ('float32',)\n"
        "    features = ('causal', 'gradients')\n"
        "    masked_rows = 'zero'\n"
        "    arithmetic = {'sums_rounded_p': True}\n"
        "    def call(self, *a, **k): ...\n"
        "    def residuals(self, *a, **k): ...\n"
        "adapter = Adapter()\n",
    )

    target = Target.load(f"{module}:adapter")

    assert target.dtypes == ("float32",)
    assert target.masked_rows == "zero"
    assert target.residuals is not None
    assert target.restrictions == {
        "dtypes": ("float32",),
        "causal": True,
        "bias": False,
        "segments": False,
        "block_sizes": False,
    }


@pytest.mark.parametrize(
    ("fields", "claim"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"bias": Bias("float32", "normal")}, "bias"),
        ({"segments": SEGMENTS}, "segments"),
        ({"block_sizes": BLOCKS}, "block_sizes"),
        ({"causal": True}, "causal"),
    ],
)
def test_case_outside_the_claims_is_named(fields: dict[str, Any], claim: str) -> None:
    target = Target("it", print, dict, tuple, dtypes=("float32",), features=frozenset())

    assert claim in (target.unclaimed(Case(1, 1, 8, 8, 8, **fields)) or "")
    assert target.unclaimed(Case(1, 1, 8, 8, 8)) is None


@pytest.mark.parametrize("masked_rows", ["zero", "any"])
def test_masked_rows_can_be_overridden(masked_rows: MaskedRows) -> None:
    assert Target.load(KERNEL, masked_rows).masked_rows == masked_rows


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kernel", "MODULE:NAME"),
        (":flash_attention", "MODULE:NAME"),
        ("no_such_module:attend", "No module named 'no_such_module'"),
        ("kernel:no_such_name", "no_such_name"),
        ("kernel:__all__", "neither callable nor an adapter"),
    ],
)
def test_target_that_cannot_be_used_is_one_line(name: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.load(name)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("statement", ["raise OSError('no\\nchip')", "raise SystemExit(3)", "1 +"])
def test_target_that_raises_at_import_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    module = _module(tmp_path, monkeypatch, f"broken_{abs(hash(statement))}", statement + "\n")

    with pytest.raises(TargetError) as caught:
        Target.load(f"{module}:attend")

    assert module in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [("features = ('speed',)", "speed"), ("masked_rows = 'nan'", "'nan'")],
)
def test_adapter_with_a_claim_unknown_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, attribute: str, words: str
) -> None:
    text = f"{attribute}\ndef call(*a, **k): ...\n"
    module = _module(tmp_path, monkeypatch, f"odd_{attribute[:8]}", text)
    outer = _module(tmp_path, monkeypatch, f"outer_{module}", f"import {module} as adapter\n")

    with pytest.raises(TargetError, match=words):
        Target.load(f"{outer}:adapter")


def test_arithmetic_follows_dtype_mode_and_blocks() -> None:
    target = Target.load(KERNEL)
    blocks = Blocks(8, 128, 128, 1, 16, 256, 128, 4, 256, 128, 16)
    float32 = Case(1, 1, 16, 256, 8, block_sizes=blocks)

    assert target.arithmetic(float32, "numpy").kv_tiles == 2
    assert target.arithmetic(float32, "numpy").q_tiles == 4
    assert target.arithmetic(float32, "tpu").rounds_inputs
    assert not target.arithmetic(float32, "interpret").rounds_inputs
