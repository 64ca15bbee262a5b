"""Transformations of jax: a call gives the same under each of them.

`control` has those that leave a call as it is, `mapping` those that lay calls side by side,
`passing` the ways of passing arrays and the places to call from; `drawing` lists their variants.
"""

from properties.claims.transformations import control, mapping, passing
from properties.claims.transformations.table import PROPERTIES

__all__ = ["PROPERTIES", "control", "mapping", "passing"]
