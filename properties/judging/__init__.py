"""A target run on a case, and its results held to the oracle."""
