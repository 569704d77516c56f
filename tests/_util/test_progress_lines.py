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
    expected = [
        f"{done} of 8 done, about {left} left" for done, left in ((2, "0:02:00"), (4, "0:01:20"), (6, "0:00:40"))
    ]
    assert lines(8, 0, 20) == expected


def test_what_was_kept_is_done_and_took_no_time() -> None:
    assert lines(12, 8, 40) == [
        "9 of 12 done, about 0:02:00 left", "10 of 12 done, about 0:01:20 left", "11 of 12 done, about 0:00:40 left",
    ]  # fmt: skip


def test_what_is_done_at_once_needs_no_line() -> None:
    assert lines(2, 0, 1) == []
