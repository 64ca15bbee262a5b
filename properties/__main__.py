"""`python -m properties`: settles the environment, then runs a command."""

import os
import sys

from properties import environment

if __name__ == "__main__":
    environment.settle()
    # Only now: numpy and jax read the environment when they are imported.
    from properties.commands.main import main

    try:
        sys.exit(main())
    except BrokenPipeError:
        # Whoever read the output, `head` perhaps, has seen enough; nothing is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
