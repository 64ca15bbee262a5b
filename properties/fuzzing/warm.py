"""Imported by the process that workers are forked from: they begin with all this done."""

from dataclasses import replace

from properties.drawing import space, triples
from properties.fuzzing import suite, worker
from properties.shrinking import warm

suite.tests()

# What guides number, of a target that claims everything: a second that each worker would take, and
# a new one is started after every crash.
for _space in (space.Space(), replace(space.Space(), backward=True)):
    triples.numbers(_space)

__all__ = ["warm", "worker"]
