"""Progress in plain lines."""

from heta_lens._util.progress_lines import ProgressLines


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
