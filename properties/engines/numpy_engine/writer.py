"""Writes a jaxpr out as straight-line NumPy source.

One equation becomes one statement. Calls are written inline; `cond`, `while` and `scan` become
`if`, `while` and `for`. Whatever does not depend on data is computed while writing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from properties.engines.errors import Unsupported
from properties.engines.numpy_engine import jax_internals as jax_side
from properties.engines.numpy_engine import references
from properties.engines.numpy_engine.jax_internals import Body
from properties.engines.numpy_engine.operations import expression
from properties.engines.numpy_engine.rules import Operand
from properties.engines.numpy_engine.source import Source

KernelCompiler = Callable[[jax_side.KernelCall], Callable[..., tuple]]

_NOTHING_TO_DO = {"debug_callback", "debug_print", "delay", "trace_value"}


class Writer:
    """Writes equations into a source.

    Args:
      source: where the statements go.
      compile_kernel: what a `pallas_call` becomes; None inside a kernel, where there is none.
      read_only: names of references that never change, which are read without copying.
    """

    def __init__(
        self,
        source: Source,
        compile_kernel: KernelCompiler | None = None,
        read_only: frozenset[str] = frozenset(),
    ) -> None:
        self.source = source
        self.read_only = read_only
        self._compile_kernel = compile_kernel
        # By the identity of the equation, which all calls of a jitted function share.
        self._kernels: dict[int, Callable[..., tuple]] = {}

    def body(self, body: Body, arguments: list[Operand]) -> list[Operand]:
        """Writes `body` inline; returns the operands that hold its results."""
        values: dict[Any, Operand] = dict(zip(body.inputs, arguments, strict=True))
        for variable, value in body.constants:
            values[variable] = self.source.constant(np.asarray(value, order="C"))

        def read(atom: Any) -> Operand:
            if jax_side.is_literal(atom):
                value = np.asarray(atom.val).astype(atom.aval.dtype)[()]
                return self.source.constant(value)
            return values[atom]

        used = body.used()
        for equation in body.equations:
            wanted = [out in used for out in equation.outvars]
            if any(wanted) or equation.effects:
                self.source.origin = equation.source_info
                operands = [read(atom) for atom in equation.invars]
                results = self._equation(equation, operands, wanted)
                values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in body.outputs]

    def _equation(self, equation: Any, operands: list[Operand], wanted: list[bool]) -> list:
        primitive, params = equation.primitive.name, equation.params
        avals = [out.aval for out in equation.outvars]
        if primitive in jax_side.CALLS:
            return self.body(jax_side.body(params[jax_side.CALLS[primitive]]), operands)
        if primitive in _NOTHING_TO_DO:
            return []
        if primitive in _CONTROL:
            return _CONTROL[primitive](self, params, avals, operands)
        if primitive == "pallas_call":
            return self._pallas_call(equation, avals, operands)
        if primitive == "run_scoped":
            inner = jax_side.scoped_body(params["jaxpr"])
            memory = references.allocated(self.source, inner.inputs[len(operands) :])
            return self.body(inner, [*operands, *memory])
        if primitive in references.RULES:
            memory_access = references.Access(self.source, self.read_only, params, operands)
            return references.RULES[primitive](memory_access, avals, wanted)
        if any(jax_side.is_reference(atom.aval) for atom in equation.invars):
            raise Unsupported(f"the operation {primitive} on a reference")
        return self._pure(primitive, params, avals, operands)

    def _pure(self, primitive: str, params: dict, avals: list, operands: list[Operand]) -> list:
        out = avals[0] if avals else None
        code = expression(primitive, self.source, params, out, operands)
        if all(operand.constant is not None for operand in operands):
            value = eval(code, self.source.globals)
            found = value if len(avals) > 1 else [value]
            return [self.source.constant(np.asarray(each)[()]) for each in found]
        return self.source.compute(avals, code)

    def _pallas_call(self, equation: Any, avals: list, operands: list[Operand]) -> list:
        if self._compile_kernel is None:
            raise Unsupported("a pallas_call inside a kernel")
        if id(equation) not in self._kernels:
            self._kernels[id(equation)] = self._compile_kernel(jax_side.kernel_call(equation))
        kernel = self.source.name(self._kernels[id(equation)])
        call = f"{kernel}({', '.join(map(str, operands))})"
        bind = self.source.assign if equation.effects else self.source.compute
        return bind(avals, f"{call}[0]" if len(avals) == 1 else call)

    def _cond(self, params: dict, avals: list, operands: list[Operand]) -> list[Operand]:
        which, *arguments = operands
        results = self.source.results(avals)
        branches = [jax_side.body(branch) for branch in params["branches"]]
        last = len(branches) - 1
        # What `pl.when` leaves behind: a first branch that does nothing.
        first = 1 if last == 1 and not branches[0].equations and not results else 0
        for number in range(first, last + 1):
            # XLA takes the nearest branch for an index out of range.
            test = f"{which} <= {number}" if number < last else "True"
            if number == first == last:
                test = f"{which} > 0" if first else "True"
            with self.source.block(f"{'if' if number == first else 'elif'} {test}:"):
                found = self.body(branches[number], arguments)
                for result, value in zip(results, found, strict=True):
                    self.source.line(f"{result} = {value}")
        return results

    def _scan(self, params: dict, avals: list, operands: list[Operand]) -> list[Operand]:
        constants, carried = jax_side.scan_split(params)
        results = self.source.results(avals)
        carry, stacked = results[:carried], results[carried:]
        for result, start in zip(carry, operands[constants:], strict=False):
            self.source.line(f"{result} = {start}")
        for result in stacked:
            dtype = self.source.name(np.dtype(result.dtype))
            self.source.line(f"{result} = np.empty({result.shape}, {dtype})")
        counter = self.source.fresh("i")
        count = f"range({params['length']})"
        steps = f"reversed({count})" if params["reverse"] else count
        with self.source.block(f"for {counter} in {steps}:"):
            rows = []
            for given in operands[constants + carried :]:
                row = Operand(self.source.fresh(), given.shape[1:], given.dtype)
                self.source.line(f"{row} = {given}[{counter}]")
                rows.append(row)
            loop = jax_side.body(params["jaxpr"])
            found = self.body(loop, [*operands[:constants], *carry, *rows])
            for result, value in zip(stacked, found[carried:], strict=True):
                self.source.line(f"{result}[{counter}] = {value}")
            self._rebind(carry, found[:carried])
        return results

    def _while(self, params: dict, avals: list, operands: list[Operand]) -> list[Operand]:
        tested, looped = params["cond_nconsts"], params["body_nconsts"]
        test_constants, loop_constants = operands[:tested], operands[tested : tested + looped]
        results = self.source.results(avals)
        for result, start in zip(results, operands[tested + looped :], strict=True):
            self.source.line(f"{result} = {start}")
        with self.source.block("while True:"):
            test = jax_side.body(params["cond_jaxpr"])
            (going,) = self.body(test, [*test_constants, *results])
            self.source.line(f"if not {going}: break")
            loop = jax_side.body(params["body_jaxpr"])
            self._rebind(results, self.body(loop, [*loop_constants, *results]))
        return results

    def _rebind(self, names: list[Operand], values: list[Operand]) -> None:
        # All at once: a new value may be another carry's old one.
        if names:
            self.source.line(f"{', '.join(map(str, names))} = {', '.join(map(str, values))}")

    def _program_id(self, params: dict, avals: list, operands: list) -> list[Operand]:
        return [Operand(f"step[{params['axis']}]", (), avals[0].dtype)]

    def _num_programs(self, params: dict, avals: list, operands: list) -> list[Operand]:
        return [Operand(f"grid[{params['axis']}]", (), avals[0].dtype)]


_CONTROL = {
    "cond": Writer._cond,
    "scan": Writer._scan,
    "while": Writer._while,
    "program_id": Writer._program_id,
    "num_programs": Writer._num_programs,
}
