"""What is known of the TPU, where there is none and where a program is lowered for one."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from kernel import chip


def test_without_a_tpu_nothing_is_known():
    assert chip.vmem_for_a_kernel() is None


@pytest.mark.parametrize(
    ("kind", "cores", "mebibytes"),
    # v4 has no more than the compiler grants anyway.
    [
        ("TPU v4", 2, None),
        ("TPU v5 lite", 1, 96),
        ("TPU v5p", 2, 48),
        ("TPU v6 lite", 1, 96),
        ("TPU7x", 1, 48),
    ],
)
def test_of_a_mesh_that_is_lowered_for(kind, cores, mebibytes):
    device = jax.sharding.AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        found = chip.vmem_for_a_kernel()
    assert found == (None if mebibytes is None else mebibytes * 2**20)
