"""Progress in plain lines, one now and then, for logs and other places where no bar can be drawn."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Thread
from time import perf_counter

EVERY = 15.0  # seconds between two lines
FIRST, LONGEST = 10.0, 60.0  # seconds before the first of some work, and at most between two
ENOUGH = 0.1  # of the work, to tell from it how long the rest will take
FORWARDS = {"backwards": 2, "hvps": 4}  # that a unit of work is worth, if not one


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


@dataclass(eq=False)
class WorkLines:
    """Says how much of the ``expected`` work is done, first after ten seconds and then less and less often.

    A thread of its own does so, because a single batch may take longer than that.
    """

    expected: Mapping[str, int]
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._ended = Event()
        self._thread = Thread(target=self._report, daemon=True)
        self._thread.start()

    def advance(self, kind: str, units: int) -> None:
        self.done[kind] += units

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _report(self) -> None:
        start, wait = perf_counter(), FIRST
        while not self._ended.wait(wait):
            self.say(self._line(perf_counter() - start))
            wait = min(2 * wait, LONGEST)

    def _line(self, seconds: float) -> str:
        done, expected = (
            sum(FORWARDS.get(kind, 1) * count for kind, count in [*counts.items()])
            for counts in (self.done, self.expected)
        )
        after = timedelta(seconds=round(seconds))
        if not ENOUGH * expected < done < expected:
            return f"working for {after}"
        left = timedelta(seconds=round(seconds * (expected - done) / done))
        return f"{done / expected:.0%} done after {after}, about {left} left"
