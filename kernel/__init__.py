"""Flash attention for TPUs in JAX Pallas, forward and backward."""

from kernel.attention import attention_residuals as attention_residuals
from kernel.attention import flash_attention
from kernel.blocks import BlockSizes
from kernel.checks import SegmentIds
from kernel.reference import mha_reference, mha_reference_bwd, mha_reference_no_custom_vjp

__all__ = [
    "BlockSizes",
    "SegmentIds",
    "flash_attention",
    "mha_reference",
    "mha_reference_bwd",
    "mha_reference_no_custom_vjp",
]
