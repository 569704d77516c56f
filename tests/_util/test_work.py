"""Work: counted where it is done, shown where somebody watches, and the bytes that it holds."""

import io
import re
from collections import Counter
from contextlib import redirect_stderr
from time import sleep

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from heta_lens._util import work as module
from heta_lens._util.work import Allocations, Bar, Work, WorkLines, count, counting, working
from heta_lens.evaluation.runner import ProgressLines
from heta_lens.methods.memory import DryRun


def test_what_is_counted_goes_to_the_innermost_count_only():
    count("forwards", 100)  # to nobody
    with counting(Counter()) as outer:
        count("forwards", 1)
        with counting(Counter()) as inner:
            count("forwards", 2)
        count("backwards", 3)
    assert (outer, inner) == ({"forwards": 1, "backwards": 3}, {"forwards": 2})


def test_what_ran_is_what_was_paid():
    """What moved the bar is an expectation; the model's own count takes its place."""
    work = Work()
    work.add("forwards", 5)
    with work.counting():
        count("forwards", 3)
    assert {name: work.cost()[name] for name in ("forwards", "backwards", "hvps")} == {
        "forwards": 3,
        "backwards": 0,
        "hvps": 0,
    }


def test_a_step_has_counts_of_its_own():
    work = Work()
    with work.step() as step:
        step.add("hvps", 2)
        count("forwards", 1)
    assert (step.cost()["hvps"], step.cost()["forwards"]) == (2, 1)
    assert (work.cost()["hvps"], work.cost()["forwards"]) == (0, 0)


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


@pytest.mark.parametrize("show", [True, None])
def test_a_terminal_shows_every_kind_of_work(show: bool | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    screen = Terminal()
    run(screen, show)
    assert "hvps" in screen.getvalue()
    assert "forwards" in screen.getvalue()


def test_a_bar_appears_when_work_lasts_whatever_step_it_is_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    screen = Terminal()
    with redirect_stderr(screen), working({"hvps": 3}, None) as work:
        work.add("hvps", 1)
        assert not work.bar.bars.live.is_started
        sleep(0.02)
        with work.step() as step:
            step.add("hvps", 1)
        assert work.bar.bars.live.is_started
    assert "hvps" in screen.getvalue()


def test_a_file_gets_the_bar_it_asked_for():
    log = io.StringIO()
    run(log, True)
    assert "hvps" in log.getvalue()


def test_bars_move_with_the_work_of_their_kind():
    with redirect_stderr(Terminal()), working({"hvps": 4, "forwards": 2}, True) as work:
        work.add("hvps", 3)
        work.add("something else", 1)
        assert [(task.completed, task.total) for task in work.bar.bars.tasks] == [(3, 4), (0, 2)]


def fail_while_working() -> None:
    with working({"hvps": 2}, True) as work:
        work.add("hvps", 1)
        raise KeyError("inside")


def test_an_error_goes_through_and_leaves_the_terminal_usable():
    screen = Terminal()
    with redirect_stderr(screen), pytest.raises(KeyError, match="inside"):
        fail_while_working()
    assert screen.getvalue().rindex(SHOW_CURSOR) > screen.getvalue().rindex(HIDE_CURSOR)


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_shows_a_bar_if_it_can(widgets: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "find_spec", lambda _: widgets or None)
    console = module.Console(force_jupyter=True)
    assert module._is_watched(console) is widgets


def bar(screen: io.StringIO, advice: list[str], due: float = 0.0) -> Bar:
    """Of a thousand units, with a clock that goes on by a tenth of a second whenever it is read."""
    clock = iter(number / 10 for number in range(10_000))
    bars = Progress(console=Console(file=screen, force_terminal=True), get_time=lambda: next(clock), auto_refresh=False)
    bars.add_task("hvps", total=1000, kind="hvps")
    return Bar(bars, due, advice.pop)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_said", set())


def test_what_is_cheaper_is_said_once() -> None:
    screen, advice = io.StringIO(), ["groups=8 would take half", "groups=8 would take half"]
    for _ in range(2):
        made = bar(screen, advice)
        for _ in range(10):
            made.advance("hvps", 1)
        made.stop()
    assert screen.getvalue().count("groups=8 would take half") == 1
    assert advice == []  # worked out once for each


def lines(total: int, kept: int, seconds: float) -> list[str]:
    """What is said while what is left is done, so many seconds each."""
    now, said = [0.0], list[str]()
    progress = ProgressLines(total, said.append, lambda: now[0], kept)
    for _ in range(total - kept):
        now[0] += seconds
        progress.advance(1)
    return said


def test_a_line_comes_now_and_then_with_the_time_that_is_left() -> None:
    assert lines(8, 0, 10) == [
        "0 of 8 done", "2 of 8 done, about 0:01:00 left", "4 of 8 done, about 0:00:40 left",
        "6 of 8 done, about 0:00:20 left",
    ]  # fmt: skip


def test_what_is_done_at_once_needs_no_more_lines_and_nothing_needs_none() -> None:
    assert lines(2, 0, 1) == ["0 of 2 done"] and lines(2, 2, 1) == []


def test_work_that_lasts_is_reported_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.1)
    monkeypatch.setattr(module, "LONGEST", 0.4)
    said = list[str]()
    work = WorkLines({"forwards": 20, "hvps": 20}, said.append)
    sleep(0.2)  # a batch that takes long
    assert said == ["working for 0:00:00"]
    work.advance("forwards", 20)
    work.advance("hvps", 5)
    sleep(1)
    work.stop()
    sleep(0.5)
    assert 3 <= len(said) <= 5  # after .1, .3, .7 and 1.1 seconds
    assert all(re.fullmatch(r"40% done after 0:00:0\d, about 0:00:0\d left", line) for line in said[1:])


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


def test_views_and_what_was_there_before_do_not_count() -> None:
    before = torch.zeros(2, KIB)
    with Allocations() as held:
        views = before[0], before.T, before.add_(1)
        assert held.now == 0
        copy = before.clone()
        several = copy[0], copy[1], copy.flatten()
        del copy
        assert held.now == 8 * KIB, "held by its views"
        del several
        assert held.now == 0
    del views


def test_what_a_graph_keeps_counts() -> None:
    leaf = torch.ones(KIB, requires_grad=True)
    with Allocations() as held:
        value = leaf.exp().exp()
        assert held.now == 8 * KIB
        del value
        assert held.now == 0


def test_conditions_hold_and_numbers_are_zero() -> None:
    with DryRun():
        empty = torch.ones(3, device="meta")
        assert (empty > 5).all() and (empty != empty).any() and torch.equal(empty, empty + 1)
        assert float(empty.max()) == int(empty.sum()) == 0
        assert empty[empty > 5].shape == (3,)
        assert float(torch.tensor(2.5)) == 2.5 and not torch.equal(torch.zeros(1), torch.ones(1))  # what has data


def test_it_holds_as_much_as_a_run_on_data() -> None:
    def run(device: str) -> None:
        x = torch.ones(4, 100, device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad((x @ x.T).softmax(-1).exp().sum(), x, create_graph=True)
        torch.autograd.grad(gradient, x, torch.ones(2, 4, 100, device=device), is_grads_batched=True)

    with Allocations() as real:
        run("cpu")
    with DryRun() as dry:
        run("meta")
        assert dry.peak() == real.most
        assert dry.peak() == dry.now < real.most
