"""`python -m properties mutants`: every small change to the kernel, and whether the suite sees it.

What was found before holds as long as the code stands: see `faults.campaign`.
"""

import argparse
import pathlib
import pkgutil

import kernel
from properties import environment
from properties.faults import campaign, record, trials


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--module",
        dest="modules",
        choices=_modules(),
        action="append",
        help="of the kernel (default: all)",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        type=pathlib.Path,
        default=record.RESULTS,
        help="what is known, and is added to (default: %(default)s)",
    )
    parser.add_argument(
        "--tiers",
        type=int,
        choices=range(trials.COUNT + 1),
        default=trials.COUNT,
        help="how many to put survivors to; 0 tries nothing (default: %(default)s)",
    )


def _modules() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(kernel.__path__) if not found.ispkg]


def command(options: argparse.Namespace) -> int:
    """Returns 0 if every mutant is killed or explained and no explanation is stale, else 1. Raises
    ValueError for a file that cannot be read, and for a kernel that fails as it is."""
    environment.settle()
    run = campaign.Campaign(
        options.modules or _modules(), options.results, record.Equivalents.read(record.EQUIVALENTS)
    )
    if options.tiers:
        run.run(options.tiers)
    print("\n".join(run.report()))
    return 1 if run.survivors() or run.stale() or run.untried() else 0
