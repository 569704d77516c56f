"""Progress in plain lines."""

import re
from time import sleep

import pytest

from heta_lens._util import work as progress_lines
from heta_lens._util.work import ProgressLines, WorkLines


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


def test_what_was_kept_is_done_and_took_no_time() -> None:
    assert lines(12, 9, 40) == [
        "9 of 12 done", "10 of 12 done, about 0:01:20 left", "11 of 12 done, about 0:00:40 left",
    ]  # fmt: skip


def test_what_is_done_at_once_needs_no_more_lines_and_nothing_needs_none() -> None:
    assert lines(2, 0, 1) == ["0 of 2 done"] and lines(2, 2, 1) == []


def test_work_that_lasts_is_reported_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "FIRST", 0.1)
    monkeypatch.setattr(progress_lines, "LONGEST", 0.4)
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


def test_short_work_needs_no_line() -> None:
    said = list[str]()
    work = WorkLines({"forwards": 2}, said.append)
    work.advance("forwards", 1)
    work.stop()
    assert not said
