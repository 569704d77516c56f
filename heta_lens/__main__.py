"""``heta-lens``, or ``python -m heta_lens``."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command; an interrupt at any moment, imports included, ends it without a traceback."""
    # OpenMP's threads keep a core busy while they wait for one another, which makes small models many times as slow
    # where others use the same cores; asleep, they wait at next to no cost.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if os.environ.get("COLUMNS") == "0":  # as of a terminal that does not know its width; rich would print nothing
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
        # Had the interrupt hit source that was run by exec, as dataclasses do on import, Python would remember it
        # and end by killing itself with SIGINT, whatever the exit status; running source anew makes it forget.
        exec("")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; or end at once while something is imported, where it may reach C++, which aborts."""
    within = frame
    while within is not None:
        if within.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        within = within.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
