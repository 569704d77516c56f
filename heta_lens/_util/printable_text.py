"""Text that is safe and clear to print: control characters made visible."""

import unicodedata

JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # parts of emoji, and of words in several scripts


def legible(text: str, keep: str = "") -> str:
    """The text with all characters visible that would steer a terminal or reorder the text: ␛ for an escape.

    Those are control characters (C0 and C1), directional overrides, and code points without a character; except those
    to ``keep``, such as line ends.
    """
    return "".join(character if _harmless(character) or character in keep else _symbol(character) for character in text)


def _harmless(character: str) -> bool:
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"


def _symbol(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    return "\N{SYMBOL FOR DELETE}" if character == "\x7f" else character.encode("unicode_escape").decode()
