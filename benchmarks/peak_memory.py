"""How much memory tensors take."""

from collections.abc import Callable
from typing import Any

from heta_lens._util.work import Allocations


def peak(run: Callable[[], Any]) -> float:
    """The most MiB that tensors held at once beyond those that were there; what a kernel needs within is not seen.

    One token, or one batch, from where runs are longest shows the most there is: nothing grows from token to token. The
    process's size says less on a CPU: freed memory stays with it, and is there for whoever comes next.
    """
    with Allocations() as held:
        run()
    return held.most / 2**20
