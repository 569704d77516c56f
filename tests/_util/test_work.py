"""Work: counted where it is done, shown where somebody watches, and the bytes that it holds."""

import io
from collections import Counter
from contextlib import redirect_stderr
from time import sleep

import pytest
import torch

from heta_lens._util import work as module
from heta_lens._util.work import Allocations, Progress, Work, count, counting, step, working


def test_what_is_counted_goes_to_the_innermost_count_only():
    count("forwards", 100)  # to nobody
    with counting(Counter()) as outer:
        count("forwards", 1)
        with counting(Counter()) as inner:
            count("forwards", 2)
        count("backwards", 3)
    assert (outer, inner) == ({"forwards": 1, "backwards": 3}, {"forwards": 2})


def test_what_ran_is_what_was_paid():
    with working({"forwards": 5}, False) as progress:
        count("forwards", 3)
        with step() as part:
            count("hvps", 2)
    assert [progress.cost()[kind] for kind in ("forwards", "backwards", "hvps")] == [3, 0, 0]
    assert [part.cost()[kind] for kind in ("forwards", "backwards", "hvps")] == [0, 0, 2]


def test_work_is_added_and_weighed():
    assert Work(1, 2) + Work(hvps=3) == Work(1, 2, 3) and Work(1, 2, 3).worth == 11


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the stream decides whether someone watches."""
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def run(stream: io.StringIO, show: bool | None) -> Progress:
    """Some work, with ``stream`` as standard error."""
    with redirect_stderr(stream), working({"hvps": 3, "forwards": 2}, show) as work:
        for _ in range(3):
            count("hvps", 1)
        count("forwards", 2)
    return work


@pytest.mark.parametrize("show", [True, None])
def test_a_terminal_shows_every_kind_of_work(show: bool | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    screen = Terminal()
    run(screen, show)
    assert "Hessian–vector products" in screen.getvalue()
    assert "forward passes" in screen.getvalue()


def test_a_bar_appears_when_work_lasts_whatever_step_it_is_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    screen = Terminal()
    with redirect_stderr(screen), working({"hvps": 3}, None) as work:
        count("hvps", 1)
        assert not work.bars.live.is_started
        sleep(0.02)
        with step():
            count("hvps", 1)
        assert work.bars.live.is_started
    assert "Hessian–vector products" in screen.getvalue()


@pytest.mark.parametrize(
    ("lines", "expected", "done", "said"),
    [
        (False, {"hvps": 2}, 1, ""),
        (True, {"hvps": 2}, 1, "50% done, about 0:00:00 left\n"),
        (True, {"hvps": 0}, 2, ""),
        (True, {"hvps": 1}, 2, "100% done, about 0:00:00 left\n"),
    ],
)
def test_a_command_says_in_lines_what_is_done_and_left_where_no_bar_can_be_drawn(
    lines: bool, expected: dict[str, int], done: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    before, stream = module.in_lines.set(lines), io.StringIO()
    with redirect_stderr(stream), working(expected, None):
        count("hvps", 0)  # too early for a line
        monkeypatch.setattr(module, "EVERY", 0.0)
        count("hvps", done)
    module.in_lines.reset(before)
    assert stream.getvalue() == said


@pytest.mark.parametrize(
    ("show", "left", "times", "said"),
    [
        (None, 60, 2, 1),
        (True, 100, 1, 1),
        (False, 100, 1, 0),
        (None, 100, 0, 0),
        (None, 7, 1, 0),
        (None, 7, 20, 0),
        (None, 15, 20, 1),
    ],
)
def test_a_long_wait_is_announced_once_with_what_shortens_it(
    show: bool | None, left: float, times: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that counts the work."""
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    stream = io.StringIO()
    with redirect_stderr(stream), working({"hvps": 100, "forwards": 3}, show, "fewer probes", times):
        for _ in range(50):
            now[0] += left / 50
            count("hvps", 1)
    assert stream.getvalue().count("left: fewer probes") == said


def fail_while_working() -> None:
    with working({"hvps": 2}, True):
        count("hvps", 1)
        raise KeyError("inside")


def test_an_error_goes_through_and_leaves_the_terminal_usable():
    screen = Terminal()
    with redirect_stderr(screen), pytest.raises(KeyError, match="inside"):
        fail_while_working()
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")  # the cursor, shown and hidden


KIB = 2**10


def test_what_is_freed_does_not_count_and_the_most_is_kept() -> None:
    with Allocations() as held:
        first = torch.zeros(2, KIB)
        assert (held.now, held.most) == (8 * KIB, 8 * KIB)
        del first
        assert (held.now, held.most) == (0, 8 * KIB)
        second = torch.zeros(KIB)
        assert (held.now, held.most) == (4 * KIB, 8 * KIB)
        del second
