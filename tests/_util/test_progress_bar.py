"""A bar appears when it is due, and says once what would be cheaper than a long wait."""

import io
from time import perf_counter

import pytest
from rich.console import Console
from rich.progress import Progress

from heta_lens._util import work
from heta_lens._util.work import Bar


def bar(screen: io.StringIO, advice: list[str], due: float = 0.0) -> Bar:
    """Of a thousand units, with a clock that goes on by a tenth of a second whenever it is read."""
    clock = iter(number / 10 for number in range(10_000))
    bars = Progress(console=Console(file=screen, force_terminal=True), get_time=lambda: next(clock), auto_refresh=False)
    bars.add_task("hvps", total=1000, kind="hvps")
    return Bar(bars, due, advice.pop)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_said", set())


def test_a_bar_is_drawn_from_when_it_is_due() -> None:
    made = bar(io.StringIO(), [], due=perf_counter() + 60)
    made.advance("hvps", 1)
    assert not made.drawn
    made.due = 0.0
    made.advance("forwards", 1)
    assert made.drawn
    made.stop()
    assert not made.drawn


def test_what_is_cheaper_is_said_once() -> None:
    screen, advice = io.StringIO(), ["groups=8 would take half", "groups=8 would take half"]
    for _ in range(2):
        made = bar(screen, advice)
        for _ in range(10):
            made.advance("hvps", 1)
        made.stop()
    assert screen.getvalue().count("groups=8 would take half") == 1
    assert advice == []  # worked out once for each


def test_nothing_is_said_of_what_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LONG", 1e6)
    screen, advice = io.StringIO(), ["groups=8 would take half"]
    made = bar(screen, advice)
    for _ in range(10):
        made.advance("hvps", 1)
    made.stop()
    assert "groups=8" not in screen.getvalue() and advice
