"""Text that is safe and clear to print: what would steer a terminal, reorder text or be invisible is made visible."""

import re
import unicodedata

from rich.cells import cell_len, set_cell_size

JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # parts of emoji, and of words in several scripts
REORDERING = {*map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
MISPLACED = {*map(chr, (0xFEFF, *range(0x206A, 0x2070), *range(0xFFF9, 0xFFFC), *range(0xE0001, 0xE0080)))}
# Tags write text that nobody sees, except after a black flag, where they make it that of a region.
REGIONAL_FLAG = re.compile("(\N{WAVING BLACK FLAG}[\U000e0020-\U000e007e]{1,6}\U000e007f)")
SPACES = re.compile(" {2,}")
BLANKS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and symbols that look like spaces
NAMES = {
    "\u00ad": "SHY", "\u034f": "CGJ", "\u200b": "ZWSP", "\u200c": "ZWNJ", "\u200d": "ZWJ", "\u2060": "WJ",
}  # fmt: skip
SYMBOLS = {chr(code): chr(0x2400 + code) for code in range(32)} | {"\n": "⏎", "\x7f": "\N{SYMBOL FOR DELETE}"}


def legible(text: str, keep: str = "") -> str:
    """The text with everything visible that would steer a terminal or reorder it: ␛ for an escape, ⏎ for a line end.

    Those are control characters except the tab, directional marks, overrides and isolates, and code points without a
    character of their own; except those to ``keep``, such as line ends. What joins and shapes the letters of a word or
    the parts of an emoji stays.
    """
    parts = REGIONAL_FLAG.split(text)  # of which every second is a flag
    return "".join(
        part if at % 2 else "".join(character if character in keep else _safe(character) for character in part)
        for at, part in enumerate(parts)
    )


def single_line(text: str) -> str:
    """The legible text for where a tab would break the layout: a title, or a cell of a table."""
    return legible(text).replace("\t", "→")


def cut(line: str, width: int) -> str:
    """The line, or as much of it as fits, with an ellipsis."""
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def visible(token: str) -> str:
    """A token that is shown on its own, so that no token looks like nothing.

    A line end is ⏎, a tab →, a no-break space ⍽, and each of several spaces in a row ·. Where there is nothing else, a
    space is ␣, and what only joins or shapes others has its name, such as ⟨ZWJ⟩.
    """
    shown = single_line(token).replace("\N{NO-BREAK SPACE}", "⍽")
    if all(map(_blank, token)):
        return "".join(map(_named, shown))
    shown = SPACES.sub(lambda spaces: "·" * len(spaces[0]), shown)
    return f"\N{DOTTED CIRCLE}{shown}" if unicodedata.category(shown[0])[0] == "M" else shown  # a mark needs a letter


def _safe(character: str) -> str:
    if character == "\t" or character.isprintable():
        return character
    if unicodedata.category(character) in ("Zs", "Cf") and character not in REORDERING | MISPLACED:
        return character
    return SYMBOLS.get(character) or character.encode("unicode_escape").decode()


def _blank(character: str) -> bool:
    """Whether nothing of it is seen."""
    return character.isspace() or character in BLANKS or unicodedata.category(character) == "Cf" or _shaping(character)


def _named(character: str) -> str:
    if character == " ":
        return "␣"
    return f"⟨{NAMES.get(character) or _code(character)}⟩" if _blank(character) else character


def _code(character: str) -> str:
    """The number of a variation selector, or of any character."""
    code = ord(character)
    return f"VS{code - 0xFE00 + 1}" if 0xFE00 <= code <= 0xFE0F else f"U+{code:04X}"


def _shaping(character: str) -> bool:
    """Whether it is a mark that only says how its neighbours look."""
    return character == "\u034f" or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
