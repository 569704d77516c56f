"""Progress in plain lines, one now and then, for logs and other places where no bar can be drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter

EVERY = 30.0  # seconds between two lines


@dataclass(eq=False)
class ProgressLines:
    """Says how many of ``total`` are done, and how long the others take if they take as long."""

    total: int
    say: Callable[[str], None]
    clock: Callable[[], float] = perf_counter
    every: float = EVERY
    done: int = 0
    start: float = field(init=False)
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.due = self.start + self.every

    def advance(self, count: int) -> None:
        self.done += count
        now = self.clock()
        if now >= self.due and 0 < self.done < self.total:
            self.due = now + self.every
            left = timedelta(seconds=round((now - self.start) * (self.total - self.done) / self.done))
            self.say(f"{self.done} of {self.total} done, about {left} left")
