"""Invariances: what a call must not notice, or must follow exactly, stated without an oracle's
values.

`exact` are those that hold bit for bit, `bounded` those that roundings break within the oracle's
bounds, `options` those that say that an option does something; `drawing` draws what they need.
"""

from properties.claims.invariances import bounded, exact, options
from properties.claims.invariances.table import PROPERTIES

__all__ = ["PROPERTIES", "bounded", "exact", "options"]
