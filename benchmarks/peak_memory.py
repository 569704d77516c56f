"""How much memory tensors take, as torch's own allocator reports it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.profiler import ProfilerActivity, profile


def peak(run: Callable[[], Any]) -> float:
    """The most MiB that tensors held at once beyond those that were there.

    One token, or one batch, from where runs are longest shows the most there is: nothing grows from token to token. The
    process's size says less on a CPU: freed memory stays with it, and is there for whoever comes next.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        run()
    results: Any = seen.profiler.kineto_results  # type: ignore[union-attr]
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    held = np.cumsum([size for _, size in sorted(events, key=lambda event: event[0])])
    return float(held.max(initial=0)) / 2**20
