"""Footnotes: notes with letters, in the order in which they are first needed."""

from string import ascii_lowercase


class Footnotes:
    """Notes with letters: a to z, then aa."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def letter(self, note: str) -> str:
        return self._letters.setdefault(note, _letter(len(self._letters)))

    def lines(self) -> list[str]:
        return [f"({letter}) {note}" for note, letter in self._letters.items()]


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + ascii_lowercase[number % 26]
