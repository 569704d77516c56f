"""Progress in plain lines."""

from heta_lens._util.progress_lines import ProgressLines


def test_a_line_comes_now_and_then_with_the_time_that_is_left() -> None:
    now, lines = [0.0], list[str]()
    progress = ProgressLines(8, lines.append, lambda: now[0])
    for _ in range(8):
        now[0] += 20
        progress.advance(1)
    assert lines == [
        "2 of 8 done, about 0:02:00 left",
        "4 of 8 done, about 0:01:20 left",
        "6 of 8 done, about 0:00:40 left",
    ]


def test_what_is_done_at_once_needs_no_line() -> None:
    lines = list[str]()
    progress = ProgressLines(2, lines.append)
    progress.advance(1)
    progress.advance(1)
    assert lines == []
