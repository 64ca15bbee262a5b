"""Compiles ahead of time for a TPU in a process of its own, and keeps what the compiler tells.

In a process of its own, because libtpu takes its options once, when it is loaded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import kernel
from kernel.benchmark.generations import GENERATIONS

# What is read of all that the compiler can write.
_DUMPS = "packed-bundles-post-ra|post-bundle-packing-post-ra|pre-delay|overlay-graph"


class Refused(Exception):
    """The compiler, or the kernel, says no; the message is theirs."""


class Compiled(NamedTuple):
    """What was compiled.

    Attributes:
      kernels: the names of the operations that are Pallas kernels.
      cores: how many cores of a chip run the program together.
      seconds: of CPU time, from tracing to the executable.
    """

    kernels: list[str]
    cores: int
    seconds: float


def compile_for(
    generation: str, shape: str, which: str, block: int | None, folder: Path
) -> Compiled:
    """Compiles one of the workloads; what the compiler writes goes to `folder`.

    Raises Refused.
    """
    job = {
        "topology": GENERATIONS[generation].topology,
        "shape": shape,
        "pass": which,
        "block": block,
        "result": str(folder / "result.json"),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "kernel.benchmark.worker", json.dumps(job)],
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        last = ran.stdout.strip().rpartition("\n")[2]
        raise Refused(f"does not compile, exit code {ran.returncode}: {last}") from None
    if "refused" in result:
        raise Refused(f"does not compile: {result['refused']}")
    return Compiled(**result)


def _environment(folder: Path) -> dict[str, str]:
    root = str(Path(kernel.__file__).parent.parent)
    options = {
        "xla_jf_dump_to": folder,
        "xla_jf_dump_llo_text": "true",
        "xla_jf_emit_annotations": "true",
        "xla_jf_dump_llo_pass_label_regex": _DUMPS,
        # Leaves q, k and v in HBM: small ones would be moved, and a kernel's time would depend on
        # what surrounds it.
        "xla_msa_enable": "false",
    }
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "LIBTPU_INIT_ARGS": " ".join(f"--{name}={value}" for name, value in options.items()),
        # Nothing is run, and a TPU that may be there is left to others.
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": str(folder / "logs"),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # A program that is found in a cache is not compiled.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
