"""How much memory tensors take."""

from collections.abc import Callable
from typing import Any

from heta_lens._util.work import Allocations


def peak(run: Callable[[], Any]) -> float:
    """Return the most MiB that tensors held at once during a run, without memory inside kernels.

    One token or one batch of the longest run shows the peak. The process's size says less on a CPU: freed memory
    stays with the process.
    """
    with Allocations() as held:
        run()
    return held.most / 2**20
