"""Entry point of ``heta-lens`` and ``python -m heta_lens``."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command; an interrupt, during imports too, ends the command without a traceback."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages of memory save time on long prompts
    # Waiting threads of OpenMP keep a core busy by default, and slow small models down on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if os.environ.get("COLUMNS") == "0":  # a terminal of unknown width; rich would print nothing
        del os.environ["COLUMNS"]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from heta_lens.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter is shutting down


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, or exit at once during an import, in which an exception may abort C++ code."""
    within = frame
    while within is not None:
        if within.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        within = within.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
