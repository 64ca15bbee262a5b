"""When copies between HBM and on-chip memory are done: one after the other, each in its turn.

A copy waits until those before it have passed, takes its bytes over the bandwidth, and is seen to
be done a latency later. Copies add to a flag when they are done; whoever waits takes away from it.
"""

import collections
import math

from kernel.benchmark.generations import Generation


class Copies:
    """The copies that a kernel has under way."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._free = 0.0  # the cycle from which HBM has nothing to do
        # By flag, the cycle at which each copy is done and its granules.
        self._under_way: dict[int, collections.deque[tuple[float, int]]] = collections.defaultdict(
            collections.deque
        )

    def start(self, route: str, granules: int, flag: int, now: int) -> None:
        """Starts a copy.

        Args:
          route: where from and where to, as in "hbm_to_vmem".
          granules: how much.
          flag: what is added to when it is done.
          now: the cycle.
        """
        chip = self._generation
        done = float(now + chip.write_latency)
        if "hbm" in route:
            size = granules * chip.granule
            self._free = max(now, self._free) + size / chip.bandwidth
            writes = route.endswith("to_hbm")
            done = self._free + (chip.write_latency if writes else chip.read_latency)
        self._under_way[flag].append((done, granules))

    def wait(self, flag: int, granules: int, now: int) -> int:
        """The cycle at which so many granules have arrived at a flag; they are taken away."""
        copies = self._under_way[flag]
        done, arrived = float(now), 0
        while copies and arrived < granules:
            at, size = copies.popleft()
            done, arrived = max(done, at), arrived + size
        return math.ceil(done)
