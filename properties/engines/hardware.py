"""TPUs that are compiled for, without having one."""

import contextlib
import importlib.util
import os
from functools import cache
from typing import Any

import jax
from jax.experimental import topologies

from properties.engines.chips import tpu_attached
from properties.engines.errors import Unsupported

# One chip of each generation, under the names libtpu gives them.
TOPOLOGIES = {
    "v4": "v4:1x1x1",
    "v5e": "v5e:1x1",
    "v5p": "v5p:1x1x1",
    "v6e": "v6e:1x1",
    "tpu7x": "tpu7x:1x1x1",
}


@cache
def compile_only_device(generation: str) -> Any:
    """A device of `generation` to compile for; nothing can run on it.

    Raises ValueError for a generation not in `TOPOLOGIES`, Unsupported where libtpu, which has the
    compilers, is not installed.
    """
    if generation not in TOPOLOGIES:
        known = ", ".join(TOPOLOGIES)
        raise ValueError(f"generation {generation!r} is not known; choose one of {known}")
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise Unsupported("libtpu, which compiles for TPUs, is not installed")
    if not tpu_attached():
        # libtpu looks for its own machine even when it only compiles, and prints errors when it
        # finds none. These answer its questions.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Older libtpus assume 2x2x1 chips a host and refuse a smaller topology unless told.
    topology = topologies.get_topology_desc(
        TOPOLOGIES[generation], "tpu", chips_per_host_bounds=[1, 1, 1]
    )
    return topology.devices[0]


def traced_for(generation: str) -> contextlib.AbstractContextManager[Any]:
    """Where what is traced can ask which TPU it will run on, and learns: this generation.

    As on a computer with such a TPU: a kernel may choose its blocks by the memory there is. Raises
    what `compile_only_device` raises.
    """
    device = compile_only_device(generation)
    described = jax.sharding.AbstractDevice(
        device_kind=device.device_kind, num_cores=device.num_cores, platform="tpu"
    )
    mesh = jax.sharding.AbstractMesh((1,), ("unused",), abstract_device=described)
    return jax.sharding.use_abstract_mesh(mesh)


def single_device(device: Any) -> jax.sharding.Sharding:
    """The sharding that puts a whole array on `device`."""
    return jax.sharding.SingleDeviceSharding(device)
