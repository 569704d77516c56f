"""Progress in plain lines, one now and then, for logs and other places where no bar can be drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter

EVERY = 15.0  # seconds between two lines


@dataclass(eq=False)
class ProgressLines:
    """Says how many of ``total`` are done, at once and then now and then, and how long the others will take.

    That is as long as those before them took; what was ``kept`` from an earlier run took no time.
    """

    total: int
    say: Callable[[str], None]
    clock: Callable[[], float] = perf_counter
    kept: int = 0
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.start = self.last = self.clock()
        if self.total > self.kept:
            self.say(f"{self.kept} of {self.total} done")

    def advance(self, count: int) -> None:
        self.done += count
        now, left = self.clock(), self.total - self.kept - self.done
        if now - self.last >= EVERY and left > 0:
            self.last = now
            time_left = timedelta(seconds=round((now - self.start) * left / self.done))
            self.say(f"{self.kept + self.done} of {self.total} done, about {time_left} left")
