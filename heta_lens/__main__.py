"""Entry point of ``heta-lens`` and ``python -m heta_lens``."""

import os
import sys


def main() -> None:
    """Run the command; an interrupt, during imports too, ends the command without a traceback."""
    # Waiting threads of OpenMP keep a core busy by default, and slow small models down on shared cores; passive threads
    # sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from heta_lens.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
