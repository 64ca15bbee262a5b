"""The commands of `python -m properties`."""
