"""A bar is drawn only where someone watches, and is gone afterwards."""

import io
from contextlib import redirect_stderr
from time import sleep

import pytest

from heta_lens._util import work as progress
from heta_lens._util.work import Work, working

HIDE_CURSOR, SHOW_CURSOR, ERASE_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the stream decides whether someone watches."""
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def run(stream: io.StringIO, show: bool | None) -> Work:
    """Some work, with ``stream`` as standard error."""
    with redirect_stderr(stream), working({"hvps": 3, "forwards": 2}, show) as work:
        for _ in range(3):
            work.add("hvps", 1)
        work.add("forwards", 2)
    return work


@pytest.mark.parametrize("show", [True, False, None])
def test_the_count_does_not_depend_on_the_bar(show: bool | None):
    cost = run(Terminal(), show).cost()
    assert (cost["forwards"], cost["hvps"]) == (2, 3)


@pytest.mark.parametrize("show", [True, None])
def test_a_terminal_shows_every_kind_of_work(show: bool | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    screen = Terminal()
    run(screen, show)
    assert "hvps" in screen.getvalue()
    assert "forwards" in screen.getvalue()


def test_what_is_done_at_once_needs_no_bar():
    screen = Terminal()
    run(screen, None)
    assert screen.getvalue() == ""


def test_a_bar_appears_when_work_lasts_whatever_step_it_is_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    screen = Terminal()
    with redirect_stderr(screen), working({"hvps": 3}, None) as work:
        work.add("hvps", 1)
        assert not work.bar.drawn
        sleep(0.02)
        with work.step() as step:
            step.add("hvps", 1)
        assert work.bar.drawn
    assert "hvps" in screen.getvalue()


def test_the_bar_is_gone_when_the_work_is_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    screen = Terminal()
    run(screen, None)
    assert screen.getvalue().endswith(ERASE_LINE)


def test_a_terminal_can_be_kept_quiet():
    screen = Terminal()
    run(screen, False)
    assert screen.getvalue() == ""


def test_a_file_gets_nothing():
    log = io.StringIO()
    run(log, None)
    assert log.getvalue() == ""


def test_a_file_gets_the_bar_it_asked_for():
    log = io.StringIO()
    run(log, True)
    assert "hvps" in log.getvalue()


def test_bars_stay_out_of_standard_output(capsys: pytest.CaptureFixture[str]):
    run(Terminal(), True)
    assert capsys.readouterr().out == ""


def test_bars_move_with_the_work_of_their_kind():
    with redirect_stderr(Terminal()), working({"hvps": 4, "forwards": 2}, True) as work:
        work.add("hvps", 3)
        work.add("something else", 1)
        assert [(task.completed, task.total) for task in work.bar.bars.tasks] == [(3, 4), (0, 2)]


def test_all_bars_are_full_when_the_work_is_done_even_if_a_kind_had_none():
    with redirect_stderr(Terminal()), working({"hvps": 2, "forwards": 0}, True) as work:
        work.add("hvps", 2)
        assert all(task.finished for task in work.bar.bars.tasks)


def fail_while_working() -> None:
    with working({"hvps": 2}, True) as work:
        work.add("hvps", 1)
        raise KeyError("inside")


def test_an_error_goes_through_and_leaves_the_terminal_usable():
    screen = Terminal()
    with redirect_stderr(screen), pytest.raises(KeyError, match="inside"):
        fail_while_working()
    assert screen.getvalue().rindex(SHOW_CURSOR) > screen.getvalue().rindex(HIDE_CURSOR)


def test_one_run_may_be_inside_another():
    with redirect_stderr(Terminal()), working({"hvps": 1}, True) as outer, working({"hvps": 1}, True) as inner:
        inner.add("hvps", 1)
    assert (outer.done["hvps"], inner.done["hvps"]) == (0, 1)


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_shows_a_bar_if_it_can(widgets: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "find_spec", lambda _: widgets or None)
    console = progress.Console(force_jupyter=True)
    assert progress._watched(console) is widgets
