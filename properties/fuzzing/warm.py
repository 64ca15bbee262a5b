"""Imported by the process that workers are forked from: they begin with all imports done."""

from properties.fuzzing import suite, worker
from properties.shrinking import warm

suite.tests()

__all__ = ["warm", "worker"]
