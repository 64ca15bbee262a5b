"""Value families are the same everywhere, and are what their names say."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from properties.cases import values
from properties.cases.case import Arrays, Bias, Case

CASE = Case(batch=2, heads=2, q_len=40, kv_len=300, head_dim=16, sm_scale=0.25, seed=7)
SCALES = (1.0, 0.25, -0.25, 1.7, -1.3, 0.3, 2.0**-20)

HASHES = {
    "normal": "da1eff2da9288526",
    "integers": "689d9ec848a62003",
    "offset_values": "d95609a8c955c81c",
    "one_hot_values": "10898bf15513df68",
    "repeated_rows": "38406d6150931cc5",
    "peaked": "cc10e3bf8c747ae1",
    "heavy_tailed": "add58a27684f3fc9",
    "outlier_channels": "0fd0c41fd2b6f571",
    "one_huge_key": "574c80a1e2fdcd08",
    "large_logits": "05786c126677a5f7",
    "very_negative": "ba4a0cbd209bb579",
    "near_underflow": "3e295ccc509b3810",
    "bias normal": "ce4d7d02cf86cffb",
    "bias constant": "d56439d6a0af2142",
    "bias inf_columns": "aba24340c243bfb9",
    "bias inf_blocks": "5ae5fd402a90056d",
    "bias inf_rows": "4b93431a941a4e9a",
    "bias lowest": "e0d1fb237a6c7d68",
}


def logits(case: Case, arrays: Arrays) -> np.ndarray:
    """sm_scale * q k^T in float64."""
    q, k = arrays.q.astype(np.float64), arrays.k.astype(np.float64)
    return case.sm_scale * np.einsum("bhqd,bhkd->bhqk", q, k)


def of_family(family: str, **fields) -> tuple[Case, Arrays, np.ndarray]:
    case = replace(CASE, values=family, **fields)
    arrays = case.arrays()
    return case, arrays, logits(case, arrays)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize("family", values.FAMILIES)
def test_arrays_never_change(family: str) -> None:
    of_float32 = replace(CASE, values=family).arrays()
    of_bfloat16 = replace(CASE, values=family, dtype="bfloat16").arrays()

    assert digest(*of_float32[:3], *of_bfloat16[:3]) == HASHES[family]


@pytest.mark.parametrize("family", values.BIAS_FAMILIES)
def test_biases_never_change(family: str) -> None:
    made = [replace(CASE, bias=Bias(dtype, family)).arrays() for dtype in ("float32", "bfloat16")]

    biases = [arrays.ab for arrays in made if arrays.ab is not None]
    assert digest(*biases, made[0].do) == HASHES[f"bias {family}"]


@pytest.mark.parametrize("family", values.FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_is_finite_and_moderate(family: str, dtype: str) -> None:
    for sm_scale in (*SCALES, 0.0):
        for head_dim in (1, 256):
            _, arrays, scaled = of_family(
                family, dtype=dtype, sm_scale=sm_scale, head_dim=head_dim, kv_len=9
            )
            for array in arrays[:3]:
                assert np.isfinite(array.astype(np.float64)).all()
            assert np.abs(scaled).max() < 1e6


@pytest.mark.parametrize("family", values.FAMILIES)
def test_tensors_are_independent_and_follow_the_seed(family: str) -> None:
    _, arrays, _ = of_family(family, q_len=300)
    _, other, _ = of_family(family, q_len=300, seed=8)

    assert not np.array_equal(arrays.q, arrays.k)
    assert not np.array_equal(arrays.k, arrays.v)
    assert not np.array_equal(arrays.q, arrays.do)
    assert not np.array_equal(arrays.k, other.k)


def test_normal_is_normal() -> None:
    _, arrays, _ = of_family("normal", q_len=1000)
    numbers = arrays.q.astype(np.float64).ravel()

    # Four deviations of each estimate's own error, for n = 64000 independent numbers.
    error = 4 / np.sqrt(numbers.size)
    assert abs(numbers.mean()) < error
    assert abs((numbers**2).mean() - 1) < error * np.sqrt(2)
    assert abs(np.mean(numbers > 1) - 0.1587) < error * 0.4
    for other in (arrays.k, arrays.v, arrays.do):
        paired = numbers[:4000] * other.ravel()[:4000]
        assert abs(paired.mean()) < 4 / np.sqrt(4000)


@pytest.mark.parametrize("sm_scale", SCALES[:-1])
def test_logits_lie_where_the_family_says(sm_scale: float) -> None:
    _, _, large = of_family("large_logits", sm_scale=sm_scale)
    assert 6e3 < np.abs(large).max() < 2e4

    _, _, negative = of_family("very_negative", sm_scale=sm_scale)
    assert negative.max() < -400
    assert negative.max(axis=-1).min() - negative.min() < 50

    _, _, huge = of_family("one_huge_key", sm_scale=sm_scale)
    per_key = np.abs(huge).mean(axis=2)
    assert (per_key.max(axis=-1) > 8 * np.sort(per_key, axis=-1)[..., -2]).all()
    assert 500 < np.abs(huge).max() < 6e3

    _, _, underflowing = of_family("near_underflow", sm_scale=sm_scale)
    weights = underflowing - underflowing.max(axis=-1, keepdims=True)
    normal, subnormal = -87.34, -103.3
    assert (weights < subnormal).any(axis=-1).all()
    assert ((weights > subnormal) & (weights < normal)).any(axis=-1).all()
    assert ((weights > normal) & (weights < -75)).any(axis=-1).all()
    assert (weights > -2).sum(axis=-1).min() > 10

    _, _, one_hot = of_family("one_hot_values", sm_scale=sm_scale)
    assert 0.9 < one_hot.std() < 1.1


@pytest.mark.parametrize("sm_scale", SCALES[:-1])
def test_peaked_queries_have_one_key_each(sm_scale: float) -> None:
    case, _, scaled = of_family("peaked", sm_scale=sm_scale, head_dim=64, q_len=300)
    best = scaled.argmax(axis=-1)

    assert scaled.max(axis=-1) == pytest.approx(24, rel=1e-6)
    assert (np.sort(scaled, axis=-1)[..., -2] < 20).all()
    assert {0, 127, 128, 255, 256, case.kv_len - 1} <= set(best.ravel().tolist())
    assert np.mean(np.abs(best - np.arange(case.q_len)) <= 1) > 0.25


def test_values_and_rows_are_what_the_family_says() -> None:
    _, arrays, _ = of_family("one_hot_values")
    assert set(np.unique(arrays.v)) == {0.0, 1.0}
    assert (arrays.v.sum(axis=-1) == 1).all()
    assert (arrays.v.argmax(axis=-1) == np.arange(CASE.kv_len) % CASE.head_dim).all()

    _, arrays, scaled = of_family("repeated_rows")
    assert len(np.unique(arrays.k[0, 0], axis=0)) == 3
    assert len(np.unique(arrays.q[0, 0], axis=0)) == 2
    assert ((scaled == scaled.max(axis=-1, keepdims=True)).sum(axis=-1) > 50).all()

    _, arrays, _ = of_family("integers")
    for array in arrays[:3]:
        assert set(np.unique(array)) == set(range(-3, 4))

    _, arrays, _ = of_family("offset_values")
    assert arrays.v.mean() == pytest.approx(8, abs=0.1)

    _, arrays, _ = of_family("outlier_channels")
    of_channel = np.abs(arrays.v).mean(axis=(0, 1, 2))
    assert of_channel.max() > 50 * np.sort(of_channel)[-2]

    _, arrays, _ = of_family("heavy_tailed")
    assert np.abs(arrays.k).max() == 32
    assert np.median(np.abs(arrays.k)) < 2

    _, arrays, _ = of_family("near_underflow")
    assert 2.0**-120 < np.abs(arrays.v).max() < 2.0**-96


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_len", [1, 2, 128, 300])
def test_biases_are_what_the_family_says(dtype: str, kv_len: int) -> None:
    def bias(family: str) -> np.ndarray:
        ab = replace(CASE, kv_len=kv_len, bias=Bias(dtype, family)).arrays().ab
        assert ab is not None
        return ab.astype(np.float64)

    assert np.isfinite(bias("normal")).all()
    assert (bias("constant") == 2.5).all()

    hidden = np.isneginf(bias("inf_columns"))
    assert (hidden == hidden[:, :, :1]).all()
    assert hidden.any()

    hidden = np.isneginf(bias("inf_blocks"))
    width = 128 if kv_len > 128 else -(-kv_len // 3)
    assert hidden[0, 0, :, :width].all()
    for start in range(0, kv_len, width):
        block = hidden[..., start : start + width]
        assert (block == block[:, :, :1, :1]).all()
    if kv_len > 1:
        assert not hidden.all(axis=-1).any()

    hidden = np.isneginf(bias("inf_rows"))
    assert (hidden == hidden[..., :1]).all()
    assert 0 < hidden[..., 0].mean() < 0.5

    lowest = bias("lowest")
    is_lowest = lowest == float(
        np.finfo(np.float32).min if dtype == "float32" else -3.3895313892515355e38
    )
    assert np.isfinite(lowest).all()
    assert kv_len == 1 or 0.1 < is_lowest.mean() < 0.35
    rows = np.arange(CASE.q_len)
    assert not is_lowest[:, :, rows, np.minimum(rows, kv_len - 1)].any()
