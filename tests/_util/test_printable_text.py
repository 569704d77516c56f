"""Text that is safe and clear to print."""

import unicodedata

import pytest

from heta_lens._util.text import REORDERING, cut, legible, single_line, visible

PERSIAN = "می‌خواهم"  # with a zero width non-joiner
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\rc\nd\x00\x7f", "a␍c⏎d␀␡"),
        ("\x9b2J\x85", r"\x9b2J\x85"),
        ("\u202eevil\u202c", r"\u202eevil\u202c"),
        ("\u2066a\u2069\u200e\u200f\u061c\u2028", r"\u2066a\u2069\u200e\u200f\u061c\u2028"),
        ("\ud83d\ue000\U0003ffff", r"\ud83d\ue000\U0003ffff"),
        ("a\ufeffb\ufff9", r"a\ufeffb\ufff9"),
        ("a\U000e0068\U000e0069", r"a\U000e0068\U000e0069"),
    ],
)
def test_what_would_steer_a_terminal_or_reorder_text_is_shown(written: str, shown: str) -> None:
    assert legible(written) == shown
    assert legible(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "", "é 日本", "a\tb", "10\u00a0km", "12\u202f345\u3000", PERSIAN, "👨\u200d💻", "❤\ufe0f", "葛\U000e0100",
        ENGLAND, "Donau\u00addampf", "ภาษา\u200bไทย", "a\u2060b", "\u06dd٣", "e\u0301",
    ],
)  # fmt: skip
def test_what_words_and_emoji_are_made_of_stays(text: str) -> None:
    assert legible(text) == text


def test_every_directional_control_is_shown() -> None:
    controls = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    marks = {"\N{LEFT-TO-RIGHT MARK}", "\N{RIGHT-TO-LEFT MARK}", "\N{ARABIC LETTER MARK}"}
    known = {chr(code) for code in range(0x10000) if unicodedata.bidirectional(chr(code)) in controls}
    assert known | marks == REORDERING
    assert not REORDERING & set(legible("".join(REORDERING)))


@pytest.mark.slow
def test_nothing_is_left_that_is_a_control_or_no_character() -> None:
    kept = {legible(chr(code)) for code in range(0x110000)} - {"\t"}
    assert not {unicodedata.category(character) for text in kept for character in text} & {"Cc", "Cs", "Cn", "Co"}


def test_line_ends_can_be_kept() -> None:
    assert legible("a\n\x1b", keep="\n") == "a\n␛"


def test_a_single_line_has_no_tabs_either() -> None:
    assert single_line("a\tb\nc\u202e") == r"a→b⏎c\u202e"


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", ""),
        (" cat", " cat"),
        ("\n", "⏎"),
        ("\n\n  ", "⏎⏎␣␣"),
        ("\t", "→"),
        ("x\ty\n", "x→y⏎"),
        (" ", "␣"),
        ("   ", "␣␣␣"),
        ("\u00a0", "⍽"),
        ("10\u00a0km", "10⍽km"),
        ("a  b c", "a··b c"),
        ("\u200c", "⟨ZWNJ⟩"),
        (" \u200d", "␣⟨ZWJ⟩"),
        ("\u200b", "⟨ZWSP⟩"),
        ("\ufe0f", "⟨VS16⟩"),
        ("\u3000", "⟨U+3000⟩"),
        ("\u3164", "⟨U+3164⟩"),
        ("\U000e0100", "⟨U+E0100⟩"),
        ("\u0301", "◌\u0301"),
        ("\u202e", r"\u202e"),
        (" \x1b", " ␛"),
        (PERSIAN, PERSIAN),
        ("👨\u200d💻", "👨\u200d💻"),
    ],
)
def test_a_token_of_its_own_never_looks_like_nothing(token: str, shown: str) -> None:
    assert visible(token) == shown


@pytest.mark.slow
def test_every_character_is_seen_as_a_token() -> None:
    lone = [visible(chr(code)) for code in range(0x110000)]
    assert not [text for text in lone if not text.strip() or unicodedata.category(text[0]) in ("Cf", "Mn", "Zs")]


def test_what_is_cut_short_says_so() -> None:
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "ab…"
