"""Options that pytest and the command `fuzz` share."""

import argparse

from properties import engines

MOST_WORKERS = 8
"""Processes that are started unless a number is given: more than tests that share a covering set
would idle."""


def generations(text: str) -> tuple[str, ...]:
    """Names of TPU generations, as in "v5e,v6e". Raises argparse.ArgumentTypeError for others."""
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(engines.TOPOLOGIES)):
        raise argparse.ArgumentTypeError(
            f"unknown generations {', '.join(unknown)}; choose of {', '.join(engines.TOPOLOGIES)}"
        )
    return names
