"""One run of the suite under pytest: options, budget, counts, failures, the summary."""
