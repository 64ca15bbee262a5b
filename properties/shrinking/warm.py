"""Imported by the process that workers are forked from: they begin with all imports done."""

import warnings

from properties.shrinking import worker

# jax warns of every fork, because threads may hold locks: that process has started none.
warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)

__all__ = ["worker"]
