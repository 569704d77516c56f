"""Text that is safe and clear to print: what would steer a terminal, reorder text or be invisible is made visible."""

import operator
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from functools import cache
from itertools import islice, pairwise
from math import exp, isfinite
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool
from rich.cells import cell_len, set_cell_size

from heta_lens._util.files import brief

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


# ---------------------------------------------------------------------------------------------------- probability text
# Probabilities in words, which never say 0 or 1 of what is only near it.


def probability(log_prob: float) -> str:
    """``p = 0.25``, ``p = 3.1e-12``, ``p = 0.9996`` or ``p > 0.9999``; ``p = 1`` and ``p = 0`` only where it is."""
    p = exp(min(log_prob, 0.0))
    if p >= 0.9995 and log_prob < 0:
        return "p > 0.9999" if p > 0.9999 else f"p = {p:.4f}"
    return f"p = {p:.3g}" if p > 1e-300 else f"p = {Decimal(log_prob).exp():.3g}"  # which no float can hold


# ---------------------------------------------------------------------------------------------------------- short repr
# A short ``repr`` for dataclasses that hold tensors or models.


LONGEST = 60  # characters of a field


def short_repr(record: Any) -> str:
    """The fields of a dataclass: tensors and models by kind and size, everything else cut short."""
    shown = (f"{field.name}={_short(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if not isinstance(value, bool | int | float | str | tuple | type(None)):
        return f"<{type(value).__name__}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})" if len(value) <= 2 else f"<{len(value)} of them>"
    shown = repr(value)
    return shown if len(shown) <= LONGEST else shown[:LONGEST] + "…"


# ---------------------------------------------------------------------------------------------------------- text spans
# Spans of characters: which word each token belongs to, and which tokens write a passage.


class Span(NamedTuple):
    """A range of characters, ``text[start:stop]``."""

    start: int
    stop: int


def words(text: str, spans: Sequence[Span], special: Sequence[bool]) -> list[list[int]]:
    """Token indices grouped into whitespace-separated words; special and blank tokens stand alone.

    A token that spans several words counts to the first, so every token is in exactly one group.
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
    """Indices of the tokens with at least one visible character inside ``wanted``."""
    shared = [text[max(span.start, wanted.start) : min(span.stop, wanted.stop)] for span in spans]
    return [index for index, characters in enumerate(shared) if characters.strip()]


def tokens_of(passage: str, text: str, spans: Sequence[Span]) -> list[int]:
    """The tokens that write a passage, which must occur in the text exactly once."""
    if not passage.strip() or text.count(passage) != 1:
        raise ValueError(f"{passage!r} occurs {text.count(passage)} times in the context: it must occur once")
    start = text.index(passage)
    return tokens_in(text, spans, Span(start, start + len(passage)))


def owners(text: str, spans: Sequence[Span], passages: Sequence[Sequence[Span]]) -> list[int]:
    """The passage that each token writes, by its index; -1 for those that write none.

    A passage is one or several spans, and none overlap. A token belongs to the first one that it shows a visible
    character of, or that it lies in, as white space may.
    """
    parts = sorted((part, index) for index, own in enumerate(passages) for part in own if part.start < part.stop)
    stops = [part.stop for part, _ in parts]
    return [_owner(text, span, islice(parts, bisect_right(stops, span.start), None)) for span in spans]


def _owner(text: str, span: Span, parts: Iterable[tuple[Span, int]]) -> int:
    """The first of these parts that a token belongs to."""
    for part, index in parts:
        if part.start >= span.stop:
            break
        within = part.start <= span.start and span.stop <= part.stop
        if within or text[max(part.start, span.start) : min(part.stop, span.stop)].strip():
            return index
    return -1


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans in their order, those that touch or overlap as one, and none that is empty."""
    found: list[Span] = []
    for span in spans:
        if found and span.start <= found[-1].stop:
            found[-1] = Span(found[-1].start, max(found[-1].stop, span.stop))
        elif span.start < span.stop:
            found.append(span)
    return tuple(found)


def visible_span(text: str, span: Span) -> Span:
    """The span without the white space at its ends (empty if that is all it holds)."""
    characters = text[span.start : span.stop]
    start = span.start + len(characters) - len(characters.lstrip())
    return Span(start, max(start, span.stop - len(characters) + len(characters.rstrip())))


# ------------------------------------------------------------------------------------------------------ sentence spans
# Splits a context into spans that are removed as a whole, such as sentences, and maps them to tokens.


Splitter: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]

# A run of marks is matched once, from its beginning: matching again from each of them would be quadratic.
END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’»]*(?=\s|$)|\n+")


def check_splitter(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r} must be a function: text -> spans (start, stop) of its characters")


def sentences(text: str, end: re.Pattern[str] = END) -> list[tuple[int, int]]:
    """Spans up to each ``end``: by default of a line, or ``.``, ``!`` or ``?`` (and quotes) before white space."""
    stops = [match.end() for match in end.finditer(text)]
    spans = pairwise([0, *stops, len(text)])
    return [(start, stop) for start, stop in spans if text[start:stop].strip()]


def is_finished(text: str) -> bool:
    """Whether a sentence or line ends where the text does."""
    return any(match.end() == len(text) for match in END.finditer(text))


def split(splitter: Splitter, text: str) -> list[tuple[int, int]]:
    """The spans that a splitter returns, refused if they are not spans of the text, one after the other."""
    returned, end = splitter(text), 0
    try:
        pairs = [(operator.index(start), operator.index(stop)) for start, stop in returned]
    except (TypeError, ValueError):
        raise TypeError(f"splitter returned {returned!r}, which are not pairs (start, stop) of characters") from None
    for start, stop in pairs:
        if not end <= start < stop <= len(text):
            raise ValueError(
                f"splitter returned ({start}, {stop}), which is not between {end} and the text's end, {len(text)}: "
                "spans (start, stop) of characters must follow one another"
            )
        end = stop
    return pairs


def members(
    text: str, spans: Sequence[Span], ranges: Sequence[tuple[int, int]], fixed: Bool[np.ndarray, "pos"]
) -> Bool[np.ndarray, "source pos"]:
    """Which tokens belong to which range; what lies between two goes with the second. ``fixed`` tokens go with none.

    A token belongs where its first visible character is. Ranges without any token are left out.
    """
    stops = [stop for _, stop in ranges]
    places = [visible_span(text, span) for span in spans]
    owners = [
        bisect_right(stops, place.start if place.start < place.stop else span.start)
        for place, span in zip(places, spans, strict=True)
    ]
    owners = np.minimum(owners, len(ranges) - 1)  # what follows the last range goes with it
    belongs = (np.arange(len(ranges))[:, None] == owners) & ~fixed
    return belongs[belongs.any(1)]


def wording(text: str, spans: Sequence[Span], row: Bool[np.ndarray, "pos"]) -> str:
    """The text of a row of tokens; a character that tokens share comes once."""
    distinct = dict.fromkeys(span for span, there in zip(spans, row, strict=True) if there)
    return "".join(text[slice(*span)] for span in distinct).strip()


def check_ranges(name: str, ranges: Any) -> None:
    """Refuse anything but pairs of whole numbers, the first below the second."""
    try:
        pairs = [(operator.index(start), operator.index(stop)) for start, stop in ranges]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={ranges!r} must be pairs (start, stop) of positions, such as ((0, 5),)") from None
    for start, stop in pairs:
        if not 0 <= start < stop:
            raise ValueError(f"{name}={ranges!r} has the pair ({start}, {stop}), which must have 0 <= start < stop")


def check_range(name: str, span: Any) -> None:
    """Refuse anything but such a pair, or None."""
    try:
        pair = None if span is None else tuple(map(operator.index, span))
    except TypeError:
        pair = ()
    if pair is not None and len(pair) != 2:
        raise TypeError(f"{name}={span!r} must be a pair (start, stop) of positions, such as (0, 5)")
    if pair and not 0 <= pair[0] < pair[1]:
        raise ValueError(f"{name}={span!r} must have 0 <= start < stop")


# ------------------------------------------------------------------------------------------------------ span alignment
# Scores of one tokenization on the tokens of another, by the characters that they share.


MARKED = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}  # how vocabularies write white space
BYTE = re.compile("<0x([0-9A-F]{2})>")  # as SentencePiece writes what is not in its vocabulary
SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]|<｜[^<>]+｜>")


def shared_out(scores: Sequence[float], spans: Sequence[Span], places: Sequence[Span]) -> list[float]:
    """Each score in equal parts on the characters of its span, and what of that is in each of the places.

    A score of an empty span is on no characters: it is left out.
    """
    ends = [span.stop for span in (*spans, *places)]
    density = np.zeros(max(ends, default=0))
    for score, span in zip(scores, spans, strict=True):
        if span.stop > span.start:
            density[span.start : span.stop] += score / (span.stop - span.start)
    before = np.concatenate([[0.0], density.cumsum()])
    return [float(before[place.stop] - before[place.start]) for place in places]


def located_tokens(tokens: Sequence[str], text: str) -> list[Span]:
    """Where tokens are in a text that they make up, as vocabularies write them; special tokens may have no place.

    A token that is part of a character's bytes has the whole character.
    """
    raw, at, spans = text.encode(errors="surrogatepass"), 0, list[Span]()
    owners = [number for number, character in enumerate(text) for _ in character.encode(errors="surrogatepass")]
    for number, token in enumerate(tokens):
        span = _next(token, raw, at)
        if span is None and not SPECIAL.fullmatch(token.strip()):
            done = owners[at - 1] + 1 if at else 0
            raise ValueError(
                f"its token {number}, {brief(token)}, is not what the text goes on with after {done} characters, "
                f"{brief(text[done : done + 20])}: give start and stop of every token"
            )
        span = span or Span(at, at)
        at = span.stop
        start = owners[span.start] if span.start < len(owners) else len(text)
        spans.append(Span(start, owners[span.stop - 1] + 1 if span.stop > span.start else start))
    return spans


def _next(token: str, raw: bytes, at: int) -> Span | None:
    """Which bytes a token has, with or without white space before it."""
    for written in _spellings(token):
        if written and raw.startswith(written, at):
            return Span(at, at + len(written))
        bare = written.strip()
        start = len(raw) - len(raw[at:].lstrip())
        if bare and raw.startswith(bare, start):
            return Span(start, start + len(bare))
    return None


def _spellings(token: str) -> Iterator[bytes]:
    """The bytes that a token may stand for."""
    yield token.encode(errors="surrogatepass")
    yield "".join(MARKED.get(character, character) for character in token).encode(errors="surrogatepass")
    yield token.removeprefix("##").encode(errors="surrogatepass")
    if byte := BYTE.fullmatch(token):
        yield bytes([int(byte[1], 16)])
    decoded = _of_bytes()
    if all(character in decoded for character in token):
        yield bytes(decoded[character] for character in token)


@cache
def _of_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable ones for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


# ---------------------------------------------------------------------------------------------------------- plain json
# Values as JSON can hold them.


def plain(value: Any) -> Any:
    """As JSON has it: no number that is not finite (infinities as text, None for one that is missing)."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if value != value else f"{value:+}"
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
