"""How a traced target is run: Pallas's interpreters, NumPy, a TPU, or a TPU's compiler alone."""

from properties.engines.chips import NoFreeChip, claim_chip, tpu_attached, visible_chips
from properties.engines.errors import KernelFault, Unsupported
from properties.engines.hardware import TOPOLOGIES, traced_for
from properties.engines.interpret import SIMULATIONS, equations, kernels
from properties.engines.program import Program, modes_available, trace
from properties.engines.stages import STAGES

__all__ = [
    "SIMULATIONS",
    "STAGES",
    "TOPOLOGIES",
    "KernelFault",
    "NoFreeChip",
    "Program",
    "Unsupported",
    "claim_chip",
    "equations",
    "kernels",
    "modes_available",
    "tpu_attached",
    "trace",
    "traced_for",
    "visible_chips",
]
