"""Which cases a run visits: the space of cases, strategies over it, and how much of it was seen."""
