"""A Python function while it is being written: its lines, and what its global names stand for."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine.rules import Operand


class Source:
    """Lines of Python, and the namespace they will run in.

    A functional one does not write and compute a second time what stands there already, outside of
    branches and loops. Where references are read that is no option.
    """

    def __init__(self, *, functional: bool = False) -> None:
        self.lines: list[str] = []
        # Where in the program under test each line comes from; the writer sets `origin`.
        self.origin: Any = None
        self.origins: list[Any] = []
        self.globals: dict[str, Any] = {"np": np}
        self._depth = 1
        self._names: dict[Any, str] = {}
        self._count = 0
        self._functional = functional
        self._computed: dict[str, list[Operand]] = {}

    def name(self, thing: Any) -> str:
        """A global name for `thing`; equal dtypes and scalars and the same object share one."""
        key: Any = id(thing)
        if isinstance(thing, np.dtype):
            key = thing
        elif isinstance(thing, np.generic):
            key = (thing.dtype, thing.tobytes())
        if key not in self._names:
            readable = getattr(thing, "__name__", None) or getattr(thing, "name", None)
            named = isinstance(readable, str) and readable.isidentifier()
            label = f"{readable}_" if named else "K"
            self._names[key] = self.fresh(label)
            self.globals[self._names[key]] = thing
        return self._names[key]

    def fresh(self, prefix: str = "v") -> str:
        """A name not used before."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> Operand:
        """An array or NumPy scalar that is known now, as an operand."""
        return Operand(self.name(value), value.shape, value.dtype, value)

    def results(self, avals: list[Any]) -> list[Operand]:
        """Fresh operands for values of these abstract values."""
        return [Operand(self.fresh(), tuple(aval.shape), aval.dtype) for aval in avals]

    def line(self, text: str) -> None:
        """Appends one statement."""
        self.lines.append(f"{'    ' * self._depth}{text}")
        self.origins.append(self.origin)

    def assign(self, avals: list[Any], code: str) -> list[Operand]:
        """Appends a statement that binds `code`, one value or a tuple of them, to fresh names."""
        results = self.results(avals)
        self.line(f"{', '.join(map(str, results))} = {code}")
        return results

    def compute(self, avals: list[Any], code: str) -> list[Operand]:
        """Like `assign`, of code that depends on the values it names and on nothing else."""
        if code in self._computed:
            return self._computed[code]
        results = self.assign(avals, code)
        if self._functional and self._depth == 1:
            self._computed[code] = results
        return results

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is appended inside the `with` stands indented under `head`."""
        self.line(head)
        start = len(self.lines)
        self._depth += 1
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._depth -= 1

    def function(self, name: str, parameters: list[str], results: list[str]) -> Callable[..., Any]:
        """Compiles the lines into a function of `parameters` that returns the tuple `results`.

        Raises Unsupported if Python cannot nest as deeply as the program does.
        """
        head = f"def run({', '.join(parameters)}):"
        end = f"    return ({''.join(f'{result}, ' for result in results)})"
        text = "\n".join([head, *self.lines, end])
        try:
            # Written above from a jaxpr alone: names, numbers and the fixed templates.
            exec(compile(text, f"<{name}>", "exec"), self.globals)
        except SyntaxError as error:
            # Python nests at most 20 loops and 100 blocks.
            if "nested" in str(error) or "indentation" in str(error):
                raise Unsupported(f"control flow this deep: {error}") from error
            raise
        return self.globals["run"]

    def origin_of(self, error: BaseException) -> Any:
        """Where the line comes from that was running when `error` was raised, None if unknown."""
        run = self.globals["run"].__code__
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code is run:
                return self.origins[line - 2]  # the head is line 1
        return None
