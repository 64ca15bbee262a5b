"""All built-in faults, and each as a target: `--target properties.faults.catalogue:NAME`."""

from typing import Any

from properties.faults import blocks, gradients, masking, numerics, refusals, results
from properties.faults.fault import Fault
from properties.faults.planting import edited, planted

_THEMES = (masking, blocks, numerics, gradients, refusals, results)

FAULTS: dict[str, Fault] = {name: each for theme in _THEMES for name, each in theme.FAULTS.items()}


def target_name(fault: str) -> str:
    """What `--target` names the kernel with this fault by."""
    return f"{__name__}:{fault}"


def __getattr__(name: str) -> Any:
    """The kernel with the fault of that name, as a target."""
    if name not in FAULTS:
        raise AttributeError(f"no fault is called {name!r}")
    return planted(edited(FAULTS[name].edits), target_name(name))
