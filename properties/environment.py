"""The surroundings of a run: settled before jax starts, and named in every report."""

import os
import platform
from importlib import metadata

_DEVICES = "--xla_force_host_platform_device_count"


def settle() -> None:
    """Chooses the CPU unless a TPU is attached, and keeps libtpu quiet. Call before using jax.

    Variables that the user has set stay as they are. libtpu is here to compile for TPUs ahead of
    time; unless told so it asks a cloud metadata server where it runs, and refuses to be loaded by
    two processes at once. One BLAS thread: the products are small, and idle threads that spin cost
    more than they give. Several CPU devices, so that a call can be divided over them.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if _DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_DEVICES}=4".strip()
    if "JAX_PLATFORMS" not in os.environ:
        from properties import engines

        if not engines.tpu_attached():
            os.environ["JAX_PLATFORMS"] = "cpu"
            import jax

            # The variable is read when jax is imported, which may have happened already.
            jax.config.update("jax_platforms", "cpu")


def versions() -> dict[str, str | None]:
    """Of what the outcome of a case may depend on; None where it is not installed."""
    return {
        "jax": _version("jax"),
        "libtpu": _version("libtpu"),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
