"""Which chips there are, and that each belongs to one process."""

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import jax
import pytest

from properties import engines
from properties.engines import chips


@pytest.fixture(autouse=True)
def machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A machine without devices, whose files are in a folder of its own."""
    for name in ("JAX_PLATFORMS", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chips, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(chips, "IOMMU_GROUPS", tmp_path / "groups")
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    chips.visible_chips.cache_clear()
    yield tmp_path
    chips.visible_chips.cache_clear()


def accelerators(machine: pathlib.Path, count: int) -> None:
    for number in range(count):
        (machine / "dev" / f"accel{number}").touch()


def vfio_group(machine: pathlib.Path, number: int, vendor: str) -> None:
    (machine / "dev" / "vfio" / str(number)).touch()
    device = machine / "groups" / str(number) / "devices" / "0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")


def test_no_device_files_are_no_chips() -> None:
    assert engines.visible_chips() == ()
    assert not engines.tpu_attached()


def test_chips_up_to_v4_are_accelerators(machine: pathlib.Path) -> None:
    accelerators(machine, 4)
    assert engines.visible_chips() == (0, 1, 2, 3)


def test_later_chips_are_vfio_groups_of_their_maker(machine: pathlib.Path) -> None:
    (machine / "dev" / "vfio" / "vfio").touch()
    vfio_group(machine, 7, "0x1ae0")
    vfio_group(machine, 9, "0x10de")
    vfio_group(machine, 12, "0x1ae0")
    assert engines.visible_chips() == (0, 1)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TPU_VISIBLE_CHIPS", "1,3", (1, 3)),
        ("TPU_VISIBLE_DEVICES", "2", (2,)),
        ("TPU_VISIBLE_CHIPS", "3,4", (3,)),
        ("JAX_PLATFORMS", "cpu", ()),
        ("JAX_PLATFORMS", "tpu,cpu", (0, 1, 2, 3)),
        ("JAX_PLATFORMS", "", (0, 1, 2, 3)),
    ],
)
def test_environment_may_leave_chips_out(
    machine: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    expected: tuple[int, ...],
) -> None:
    accelerators(machine, 4)
    monkeypatch.setenv(variable, value)
    assert engines.visible_chips() == expected


# A process that takes a chip, says which and what libtpu will see, and keeps it until told to end.
CLAIMING = """
    import os, pathlib, sys
    from properties.engines import chips

    chips.DEVICES = pathlib.Path(sys.argv[1])
    chips._PATIENCE = float(sys.argv[2])
    try:
        print(chips.claim_chip(), os.environ["TPU_VISIBLE_CHIPS"], os.environ["TPU_PROCESS_PORT"],
              os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"], flush=True)
        sys.stdin.readline()
    except chips.NoFreeChip as error:
        print(error, flush=True)
"""


class Process:
    """One that has claimed a chip, or could not."""

    def __init__(self, machine: pathlib.Path, patience: float = 0.0) -> None:
        command = [sys.executable, "-c", textwrap.dedent(CLAIMING)]
        self._process = subprocess.Popen(
            [*command, str(machine / "dev"), str(patience)],
            env={key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
            | {"TMPDIR": str(machine)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_each_process_has_a_chip_of_its_own_until_it_ends(machine: pathlib.Path) -> None:
    accelerators(machine, 2)
    owners = [Process(machine), Process(machine)]
    said = sorted(owner.output.readline() for owner in owners)
    assert said == ["0 0 8476 1,1,1\n", "1 1 8477 1,1,1\n"]

    refused = Process(machine).output.readline()
    assert "all chips (0, 1) belong to other processes" in refused
    assert str(machine) in refused

    # What comes in place of a killed process waits until it is gone, and takes its chip.
    waiting = Process(machine, patience=60.0)
    owners[0].kill()
    assert waiting.output.readline() in said
    for owner in (owners[1], waiting):
        owner.kill()


def test_a_process_claims_once_and_jax_is_told(
    machine: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerators(machine, 2)
    updated: dict[str, str] = {}
    monkeypatch.setattr(jax.config, "update", updated.__setitem__)
    monkeypatch.setattr(chips.os, "environ", dict(os.environ))
    monkeypatch.setattr(chips.tempfile, "gettempdir", lambda: str(machine))
    monkeypatch.setattr(chips, "_held", [])
    claim = chips.claim_chip
    claim.cache_clear()
    try:
        assert (claim(), claim()) == (0, 0)
        assert len(chips._held) == 1
    finally:
        claim.cache_clear()
    assert updated == {"jax_platforms": "tpu,cpu"}
