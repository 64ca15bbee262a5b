"""Imported by the process that runs of the suite are forked from: they begin with all this done.

It is three times what most faults take to be found. No backend of jax is started: it would not
survive a fork.
"""

import warnings

import pytest

from properties.drawing import space, triples
from properties.session import plugin

# jax warns of every fork, because threads may hold locks: that process has started none.
warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)

# The features that a run may visit are counted for its report; what is counted is kept.
triples.legal_triples(space.Space())

__all__ = ["plugin", "pytest"]
