"""`python -m properties`: settles the environment, then runs a command."""

import os
import signal
import sys

from properties import environment

if __name__ == "__main__":
    try:
        environment.settle()
        # Only now: numpy and jax read the environment when they are imported.
        from properties.commands.main import main

        sys.exit(main())
    except BrokenPipeError:
        # Whoever read the output, `head` perhaps, has seen enough; nothing is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
