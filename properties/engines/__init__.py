"""How a traced target is run: Pallas's interpreters, NumPy, a TPU, or a TPU's compiler alone."""

from properties.engines.errors import KernelFault, Unsupported
from properties.engines.hardware import TOPOLOGIES, tpu_attached
from properties.engines.interpret import SIMULATIONS
from properties.engines.program import Program, modes_available, trace
from properties.engines.stages import STAGES

__all__ = [
    "SIMULATIONS",
    "STAGES",
    "TOPOLOGIES",
    "KernelFault",
    "Program",
    "Unsupported",
    "modes_available",
    "tpu_attached",
    "trace",
]
