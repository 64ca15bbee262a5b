"""What is known of the TPU that a call will run on."""

from __future__ import annotations

from jax.experimental.pallas import tpu as pltpu

from kernel.defaults import LEAST_VMEM


def vmem_for_a_kernel() -> int | None:
    """Bytes of on-chip memory that a kernel may ask for, None for what the compiler grants.

    Three quarters of what the TPU has, where it is known and has more than the least. It is the
    default device, or the one of an abstract mesh that a program is lowered for; on a computer
    without a TPU it is not known.
    """
    try:
        capacity = pltpu.get_tpu_info().vmem_capacity_bytes
    except ValueError:
        return None
    return None if capacity <= LEAST_VMEM else capacity * 3 // 4
