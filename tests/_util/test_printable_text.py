"""Text that is safe to print."""

import pytest

from heta_lens._util.printable_text import legible


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\tb\rc\nd\x00\x7f", "a␉b␍c␊d␀␡"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("\u202eabc\u2066\u200e\u2028", r"\u202eabc\u2066\u200e\u2028"),
        ("\ud83d\ue000", r"\ud83d\ue000"),
        ("é 日本 \u00a0👩\u200d🔬", "é 日本 \u00a0👩\u200d🔬"),
        ("", ""),
    ],
)
def test_what_would_steer_a_terminal_is_shown(written: str, shown: str) -> None:
    assert legible(written) == shown
    assert legible(shown) == shown


def test_line_ends_can_be_kept() -> None:
    assert legible("a\n\x1b", keep="\n") == "a\n␛"
