"""The TPU generations: what a core of each can do, and how its copies take their time.

Clocks, matrix units and the number of cores are those that `pltpu.get_tpu_info` lists and the
compiler schedules by: a product of two 4096 x 4096 matrices comes out within 4 % (v5e, v6e) and 8 %
(v4) of what they allow. Latencies and bandwidths of copies are fitted to the static profiler in
libtpu 0.0.52 (`--xla_jf_dump_static_llo_profile_to`), on single copies of 4 KiB to 2 MiB: to the
compiler's idea of a TPU, that is, and not to a TPU. Granules and delays are as its schedules have
them.
"""

from typing import NamedTuple


class Generation(NamedTuple):
    """One core of a TPU.

    Attributes:
      topology: libtpu's name for a single chip.
      clock: cycles a microsecond.
      products: multiplications of bfloat16 that the matrix units do in a cycle.
      read_latency, write_latency: cycles from the end of a copy from, or to, HBM until it is seen.
      bandwidth: bytes between HBM and the core in a cycle.
      granule: bytes of the unit in which copies are counted.
      delay: bundles after a branch that are run whether or not it is taken.
    """

    topology: str
    clock: int
    products: int
    read_latency: int
    bandwidth: int
    write_latency: int = 400
    granule: int = 32
    delay: int = 4


_FOUR_OF_128 = 4 * 128 * 128
_TWO_OF_256 = 2 * 256 * 256 * 2  # two rows of operands a cycle

GENERATIONS = {
    # The profiler fails for v4: its copies are v5e's, in proportion to the clocks and bandwidths.
    "v4": Generation("v4:1x1x1", 1050, _FOUR_OF_128, 764, 526, granule=512, delay=1),
    "v5e": Generation("v5e:1x1", 1500, _FOUR_OF_128, 1091, 491),
    # Two cores share what the profiler gives to one.
    "v5p": Generation("v5p:1x1x1", 1750, _FOUR_OF_128, 608, 626),
    "v6e": Generation("v6e:1x1", 1750, _TWO_OF_256, 488, 776),
    "tpu7x": Generation("tpu7x:1x1x1", 2200, _TWO_OF_256, 634, 1688, delay=6),
}
