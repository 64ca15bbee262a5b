"""Whose turn it is: time is shared out among files of tests, and in each among its tests."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from properties.fuzzing.suite import Test
from properties.session.profiles import SHARES

FIRST = "test_regressions.py"
"""What failed once is run before all else."""


class Turns:
    """Gives the turn to the file that has used least of its share, and in it to the test that has.

    part, parts: tests with a fixed list of cases are divided between so many processes; `done` are
    the names of those that have been run.
    """

    def __init__(
        self,
        tests: Sequence[Test],
        used: dict[str, float],
        *,
        part: int = 0,
        parts: int = 1,
        done: Collection[str] = (),
    ) -> None:
        fixed = [test for test in tests if not test.drawn and test.name not in done]
        mine = {test.name for test in fixed[part::parts]}
        self._tests = [test for test in tests if test.drawn or test.name in mine]
        self._used: defaultdict[str, float] = defaultdict(float, used)

    def next(self) -> Test | None:
        """The test whose turn it is, None if none is left."""
        of_file: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._used.items():
            of_file[name.partition("::")[0]] += seconds

        def place(test: Test) -> tuple[bool, float, float]:
            return (
                test.file != FIRST,
                of_file[test.file] / SHARES.get(test.file, 1.0),
                self._used[test.name] / test.weight,
            )

        return min(self._tests, key=place, default=None)

    def took(self, test: Test, seconds: float) -> None:
        self._used[test.name] += seconds

    def end(self, test: Test) -> None:
        """Nothing is left of a test."""
        self._tests.remove(test)
