"""The TPU chips of this machine, and the one that belongs to this process.

A chip serves one process, and libtpu takes every chip that it sees. Which chips there are is told
from device files: asking jax would load libtpu, which takes them all.
"""

import fcntl
import functools
import os
import tempfile
import time
from pathlib import Path
from typing import IO

import jax

DEVICES = Path("/dev")
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")

# The platforms that jax starts in a process that has a chip; interpreters run on the CPU.
PLATFORMS = "tpu,cpu"

_GOOGLE_PCI_VENDOR = "0x1ae0"

# Seconds. A process that crashed may take some to end, and has its chip until then.
_PATIENCE = 10.0

# The first port on which the runtime of a chip listens; any that is free would do.
_PORT = 8476

# Open for as long as the process lives, which is how long it has its chip.
_held: list[IO[str]] = []


class NoFreeChip(ValueError):
    """Every chip belongs to another process; the message is one line for the user."""


@functools.cache
def visible_chips() -> tuple[int, ...]:
    """The chips that a process may take, by libtpu's numbers for them; none without a TPU.

    Up to v4, TPUs are /dev/accelN; later ones are handed over through VFIO, where the group's PCI
    vendor tells them from other devices. TPU_VISIBLE_CHIPS, by its older name TPU_VISIBLE_DEVICES,
    leaves out the others, and a JAX_PLATFORMS without "tpu" all of them.
    """
    if "tpu" not in (os.environ.get("JAX_PLATFORMS") or "tpu"):
        return ()
    there = range(len(list(DEVICES.glob("accel[0-9]*"))) or _vfio_groups())
    visible = os.environ.get("TPU_VISIBLE_CHIPS") or os.environ.get("TPU_VISIBLE_DEVICES")
    named = there if not visible else [int(number) for number in visible.split(",")]
    return tuple(chip for chip in there if chip in named)


def _vfio_groups() -> int:
    return sum(
        any(
            vendor.read_text().strip() == _GOOGLE_PCI_VENDOR
            for vendor in IOMMU_GROUPS.glob(f"{group.name}/devices/*/vendor")
        )
        for group in (DEVICES / "vfio").glob("[0-9]*")
    )


def tpu_attached() -> bool:
    """Whether this machine has a TPU that may be used."""
    return bool(visible_chips())


@functools.cache
def claim_chip() -> int:
    """Takes a free chip for this process, for as long as it lives, and gives its number.

    Call before jax starts its backends: it then starts on this chip and sees no other. The chip is
    marked by a lock on a file, which the system lifts when a process ends in whatever way, so that
    one that takes the place of a crashed process finds the chip free.

    Raises NoFreeChip if all belong to other processes, or there are none.
    """
    folder = Path(tempfile.gettempdir(), f"attention-properties-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    end = time.monotonic() + _PATIENCE
    while True:
        for chip in visible_chips():
            if _locked(folder / f"chip-{chip}.lock"):
                os.environ.update(_environment(chip))
                jax.config.update("jax_platforms", PLATFORMS)
                return chip
        if time.monotonic() > end:
            raise NoFreeChip(
                f"mode tpu: all chips ({', '.join(map(str, visible_chips()))}) belong to other "
                f"processes, which hold the locks in {folder}; end those, or use fewer workers"
            )
        time.sleep(0.1)


def _locked(path: Path) -> bool:
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    _held.append(file)
    return True


def _environment(chip: int) -> dict[str, str]:
    """What makes libtpu take this chip alone, as a TPU of one chip with one process.

    The bounds, address and port are needed beside the number: without them libtpu takes the whole
    machine for one TPU whose chips must come up together.
    """
    port = str(_PORT + chip)
    return {
        "TPU_VISIBLE_CHIPS": str(chip),
        "TPU_VISIBLE_DEVICES": str(chip),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": port,
        "CLOUD_TPU_TASK_ID": "0",
    }
