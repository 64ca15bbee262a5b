"""Float64 truth for attention kernels, with rigorous per-element error bounds, and the contract.

NumPy only: shares no code with any kernel, and does not import jax.

    truth = Truth(q, k, v, do=do, causal=True, arithmetic=Arithmetic.of("bfloat16"))
    truth.ratio("o", got)          # above 1 anywhere: wrong
"""

from oracle import contract
from oracle.rounding import Arithmetic
from oracle.truth import Truth

__all__ = ["Arithmetic", "Truth", "contract"]
