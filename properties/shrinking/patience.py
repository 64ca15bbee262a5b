"""How long a case may take before it counts as one that hangs."""

from properties.cases.case import Case

_SMALL = 2**25
"""Work below which the time of a case hardly depends on it: what is traced and compiled does."""


class Patience:
    """Learns from cases that came to an end.

    first: seconds that a case may take before one has; least, most: of all limits after that;
    times: how many times as long as the slowest of those that did a case may take.
    """

    def __init__(
        self,
        first: float = 60.0,
        least: float = 10.0,
        most: float = 1800.0,
        times: float = 20.0,
    ) -> None:
        self._first, self._least, self._most, self._times = first, least, most, times
        self.slowest = 0.0
        self._slowest_work = 0

    def limit(self, case: Case) -> float:
        """Seconds that a case may take."""
        if not self.slowest:
            return self._first
        larger = max(_work(case) / max(self._slowest_work, _SMALL), 1.0)
        return min(max(self._times * self.slowest * larger, self._least), self._most)

    def took(self, case: Case, seconds: float) -> None:
        """A case came to an end."""
        if seconds > self.slowest:
            self.slowest, self._slowest_work = seconds, _work(case)


def _work(case: Case) -> int:
    """What the time of a case grows with."""
    rows = case.batch * case.heads
    return rows * (case.q_len * case.kv_len + case.q_len + case.kv_len) * (case.head_dim + 32)
