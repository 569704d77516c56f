"""Text: safe and clear printing, tables, spans of words, sentences and tokens, and short forms of values."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from math import exp, isfinite
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # in emoji, and in words of several scripts
SPACES = re.compile(" {2,}")
# Characters without ink that are no spaces: fillers, a blank pattern of Braille, and shapers of the character before.
BLANK = re.compile("[\u034f\u115f\u1160\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
SYMBOLS = {chr(code): chr(0x2400 + code) for code in range(32)} | {"\n": "⏎", "\x7f": "\N{SYMBOL FOR DELETE}"}


def legible(text: str, keep: str = "") -> str:
    """Make characters visible that would steer a terminal or reorder text: ␛ for an escape, ⏎ for a line end.

    Control characters, format characters and unassigned code points are replaced, except tabs, joiners and ``keep``.
    """
    return "".join(character if character in keep else _safe(character) for character in text)


def single_line(text: str) -> str:
    """Return legible text without tabs, for titles and cells of tables."""
    return legible(text).replace("\t", "→")


def cut(line: str, width: int) -> str:
    """Cut a line to a width in terminal cells, with an ellipsis."""
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def visible(token: str) -> str:
    """Show a single token so that no token is invisible.

    A line end is ⏎, a tab →, a no-break space ⍽, and several spaces in a row are ·. In a blank token, a space is ␣, and
    characters that only join or shape letters are numbers, such as ⟨U+200D⟩.
    """
    shown = single_line(token).replace("\N{NO-BREAK SPACE}", "⍽")
    if all(map(_blank, token)):
        return "".join(code_point(character) if _blank(character) else character for character in shown)
    shown = SPACES.sub(lambda spaces: "·" * len(spaces[0]), shown)
    return f"\N{DOTTED CIRCLE}{shown}" if unicodedata.category(shown[0])[0] == "M" else shown  # a mark needs a letter


def code_point(character: str) -> str:
    """Return a visible form of an invisible character: ␣ for a space, else its number."""
    return "␣" if character == " " else f"⟨U+{ord(character):04X}⟩"


def _safe(character: str) -> str:
    if character.isprintable() or character in f"\t{JOINERS}" or unicodedata.category(character) == "Zs":
        return character
    return SYMBOLS.get(character) or character.encode("unicode_escape").decode()


def _blank(character: str) -> bool:
    """Return whether a character is invisible."""
    return character.isspace() or unicodedata.category(character) == "Cf" or BLANK.match(character) is not None


# --------------------------------------------------------------------------------------------- short forms of values
def probability(log_prob: float) -> str:
    """Write ``p = 0.25``, ``p = 3.1e-12`` or ``p > 0.9999``; ``p = 1`` for exact values only."""
    p = exp(min(log_prob, 0.0))
    if p >= 0.9995 and log_prob < 0:
        return "p > 0.9999" if p > 0.9999 else f"p = {p:.4f}"
    return f"p = {p:.3g}"


def counted(count: int, noun: str) -> str:
    """Write ``1 token``, ``2 tokens``."""
    return f"{count} {noun}{'s' * (count != 1)}"


# ------------------------------------------------------------------------------------------------------------- tables
def text_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    *,
    header: bool = True,
    bold: Collection[tuple[int, int]] = (),
) -> Table:
    """Return a table of texts, without characters to steer the terminal.

    ``right`` are columns of numbers, ``bold`` the row and the column of each bold cell.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header)
    for name in columns:
        table.add_column(Text(legible(name)), justify="right" if name in right else "left", overflow="fold")
    for number, cells in enumerate(rows):
        styles = ["bold" if (number, column) in bold else "" for column in range(len(columns))]
        texts = [legible(cell, keep="\n").replace("\t", "→") for cell in cells]
        table.add_row(*map(Text, texts, styles))
    return table


# -------------------------------------------------------------------------------------------------------------- spans
class Span(NamedTuple):
    """A range of characters, ``text[start:stop]``."""

    start: int
    stop: int


def words(text: str, spans: Sequence[Span], special: Sequence[bool]) -> list[list[int]]:
    """Group token indices into words separated by white space; special and blank tokens stand alone.

    A token over several words belongs to the first, so every token is in exactly one group.
    """
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    groups: list[list[int]] = []
    last = None
    for index, span in enumerate(spans):
        shown = visible_span(text, span)
        word = None if special[index] or shown.start == shown.stop else bisect_right(starts, shown.start)
        if word is not None and word == last:
            groups[-1].append(index)
        else:
            groups.append([index])
        last = word
    return groups


def tokens_in(text: str, spans: Sequence[Span], wanted: Span) -> list[int]:
    """Return indices of the tokens with a visible character inside ``wanted``."""
    shared = [text[max(span.start, wanted.start) : min(span.stop, wanted.stop)] for span in spans]
    return [index for index, characters in enumerate(shared) if characters.strip()]


def tokens_of(passage: str, text: str, spans: Sequence[Span]) -> list[int]:
    """Return the tokens of a passage, which must occur in the text exactly once."""
    if not passage.strip() or text.count(passage) != 1:
        raise ValueError(f"{passage!r} occurs {text.count(passage)} times in the text: it must occur once")
    start = text.index(passage)
    return tokens_in(text, spans, Span(start, start + len(passage)))


def owners(text: str, spans: Sequence[Span], passages: Sequence[Sequence[Span]]) -> list[int]:
    """Return the index of the passage of each token; -1 for tokens outside passages.

    A passage is a list of spans, and passages do not overlap. A token belongs to the first passage with a visible
    character of the token, or around the token (for white space).
    """
    parts = sorted((part, index) for index, own in enumerate(passages) for part in own if part.start < part.stop)
    stops = [part.stop for part, _ in parts]
    return [_owner(text, span, islice(parts, bisect_right(stops, span.start), None)) for span in spans]


def _owner(text: str, span: Span, parts: Iterable[tuple[Span, int]]) -> int:
    for part, index in parts:
        if part.start >= span.stop:
            break
        within = part.start <= span.start and span.stop <= part.stop
        if within or text[max(part.start, span.start) : min(part.stop, span.stop)].strip():
            return index
    return -1


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join spans that touch or overlap, and drop empty spans."""
    found: list[Span] = []
    for span in spans:
        if found and span.start <= found[-1].stop:
            found[-1] = Span(found[-1].start, max(found[-1].stop, span.stop))
        elif span.start < span.stop:
            found.append(span)
    return tuple(found)


def visible_span(text: str, span: Span) -> Span:
    """Return a span without white space at the ends; a span of white space becomes empty."""
    characters = text[span.start : span.stop]
    start = span.start + len(characters) - len(characters.lstrip())
    return Span(start, max(start, span.stop - len(characters) + len(characters.rstrip())))


# ---------------------------------------------------------------------------------------------------------- sentences
# A run of marks is matched once, from the first mark: a match from every mark would take quadratic time.
END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’»]*(?=\s|$)|\n+")


def sentences(text: str, end: re.Pattern[str] = END) -> list[tuple[int, int]]:
    """Return spans up to each ``end``: a line end, or ``.``, ``!`` or ``?`` (and quotes) before white space."""
    stops = [match.end() for match in end.finditer(text)]
    spans = pairwise([0, *stops, len(text)])
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]


def members(
    text: str, spans: Sequence[Span], ranges: Sequence[tuple[int, int]], fixed: Bool[np.ndarray, "pos"]
) -> Bool[np.ndarray, "source pos"]:
    """Return the tokens of each range, without ``fixed`` tokens; ranges without tokens are left out.

    A token belongs to the range of its first visible character, and a token between two ranges to the second.
    """
    stops = [stop for _, stop in ranges]
    places = [visible_span(text, span) for span in spans]
    owners = [
        bisect_right(stops, place.start if place.start < place.stop else span.start)
        for place, span in zip(places, spans, strict=True)
    ]
    owners = np.minimum(owners, len(ranges) - 1)  # tokens after the last range belong to the last range
    belongs = (np.arange(len(ranges))[:, None] == owners) & ~fixed
    return belongs[belongs.any(1)]


# --------------------------------------------------------------------------------------------------------------- json
def plain(value: Any) -> Any:
    """Convert a value to JSON's types; infinities become text, and NaN becomes None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if value != value else f"{value:+}"
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
