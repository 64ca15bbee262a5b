"""The surroundings of a run: settled before jax starts, and named in every report."""

import ctypes
import gc
import os
import platform
from importlib import metadata

# Of glibc's mallopt, from its malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_DEVICES = "--xla_force_host_platform_device_count"


def settle() -> None:
    """Chooses the CPU, which `engines.claim_chip` may change. Call before using jax.

    Variables that the user has set stay as they are. libtpu is here to compile for TPUs ahead of
    time; unless told so it refuses to be loaded by two processes at once. One BLAS thread: the
    products are small, and idle threads that spin cost more than they give. Several CPU devices, so
    that a call can be divided over them.
    """
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if _DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_DEVICES}=4".strip()
    # Imports jax, which reads JAX_PLATFORMS then, so that it is told its platforms as well.
    from properties import engines

    if engines.tpu_attached():
        _use_the_cpu()
    elif "JAX_PLATFORMS" not in os.environ:
        os.environ["JAX_PLATFORMS"] = "cpu"
        _use_the_cpu()
    _keep_memory()


def _use_the_cpu() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")


def _keep_memory() -> None:
    """Spends memory where that saves time: a case comes and goes in 100 ms.

    glibc gives arrays of megabytes back to the system when they are freed, and their successors
    fault in page by page: a quarter of the time of further data in a traced program. Tracing makes
    objects by the ten thousand, which the collector at its default looks at again and again: a
    tenth of a new configuration.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Not one without the other: each alone makes it slower.
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
    gc.set_threshold(50_000)


def give_back_memory() -> None:
    """Returns to the system what was freed: what is kept would otherwise grow for an hour."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def cores() -> int:
    """Those this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
