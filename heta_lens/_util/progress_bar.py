"""A progress bar for each kind of work, drawn once the work lasts."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from rich.progress import Progress

LONG = 10.0  # seconds still to come of which one may want to know what would be cheaper
_said: set[str] = set()


@dataclass(eq=False)
class Bar:
    """Bars that appear when they are ``due``; if there is long to wait, ``cheaper`` says what is, once."""

    bars: Progress
    due: float
    cheaper: Callable[[], str]

    @property
    def drawn(self) -> bool:
        return self.bars.live.is_started

    def advance(self, kind: str, units: int) -> None:
        if not self.drawn and perf_counter() >= self.due:
            self.bars.start()
        for task in self.bars.tasks:
            if task.fields["kind"] == kind:
                self.bars.advance(task.id, units)
                if self.drawn and (task.time_remaining or 0) > LONG:
                    self._say_once(self.cheaper())

    def _say_once(self, advice: str) -> None:
        if advice and advice not in _said:
            _said.add(advice)
            self.bars.console.print(advice, markup=False, highlight=False, soft_wrap=True)
        self.cheaper = lambda: ""

    def stop(self) -> None:
        if self.drawn:
            self.bars.stop()
