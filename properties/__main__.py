"""`python -m properties`: settles the environment, then runs a command."""

import sys

from properties import environment

if __name__ == "__main__":
    environment.settle()
    # Only now: numpy and jax read the environment when they are imported.
    from properties.commands.main import main

    sys.exit(main())
