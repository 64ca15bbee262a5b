"""The process that compiles; `compiling.py` starts it."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from kernel.benchmark import workloads

_KERNEL = re.compile(r'%([\w.\-]+) = [^\n]*custom_call_target="tpu_custom_call"')


def main() -> None:
    job = json.loads(sys.argv[1])
    try:
        result = _compile(job)
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        # The rest of it is how much memory each buffer takes.
        result = {"refused": f"{type(error).__name__}: {error}".partition("\n")[0]}
    Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    # Older libtpus assume 2x2x1 chips a host and refuse a smaller topology unless told.
    topology = topologies.get_topology_desc(job["topology"], "tpu", chips_per_host_bounds=[1, 1, 1])
    device: Any = topology.devices[0]
    cores = device.num_cores
    sharding = jax.sharding.SingleDeviceSharding(device)
    shape = workloads.SHAPES[job["shape"]]
    function, arguments = workloads.build(shape, job["pass"], job["block"])
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    # The kernel asks which TPU it is traced for, as it does on one.
    mesh = jax.sharding.AbstractMesh(
        (1,),
        ("chip",),
        abstract_device=jax.sharding.AbstractDevice(
            device_kind=device.device_kind, num_cores=cores, platform="tpu"
        ),
    )
    started = time.process_time()
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    compiled = lowered.compile()
    seconds = time.process_time() - started
    return {
        "kernels": _KERNEL.findall(compiled.as_text()),
        "cores": cores,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
