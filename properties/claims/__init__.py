"""What is claimed of a target: each property, as a function of one case."""
