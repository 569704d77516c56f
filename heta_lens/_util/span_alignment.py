"""Scores of one tokenization on the tokens of another, by the characters that they share."""

import re
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from heta_lens._util.file_reading import brief
from heta_lens._util.text_spans import Span

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
