"""Which token writes a text after a context, where several might: in which order they come, and which is taken."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

Decode: TypeAlias = Callable[[Sequence[int]], str]

TAIL = 8  # context tokens that can still change how the next token is written


class Match(NamedTuple):
    """A token that writes a text, exactly or with its leading space toggled; and whether it is a byte token."""

    token: int
    exact: bool
    byte: bool


class Spelled(NamedTuple):
    """The token chosen for a text, and the others that write the same."""

    token: int
    others: tuple[int, ...] = ()


def _never(token: int) -> bool:  # noqa: ARG001
    return False


def matches(
    decode: Decode,
    tokens: Iterable[int],
    log_probs: Sequence[float],
    context: Sequence[int],
    text: str,
    is_byte: Callable[[int], bool] = _never,
) -> list[Match]:
    """The tokens that append ``text`` to the context, or ``text`` with its leading space toggled; best first.

    Byte tokens come last: a model writes them only where it has no other token. Among the rest, those that write
    exactly the text come first, the most likely of these before the others.
    """
    toggled = text[1:] if text.startswith(" ") else " " + text
    wanted = {text, toggled} - {""}
    candidates = [
        Match(token, written == text, is_byte(token))
        for token, written in appended(decode, context[-TAIL:], tokens)
        if written in wanted
    ]
    return sorted(candidates, key=lambda match: (match.byte, not match.exact, -log_probs[match.token]))


def best_match(candidates: Sequence[Match]) -> Spelled:
    """The first of these matches; beside it those that write the text at least as exactly."""
    first, *rest = candidates
    return Spelled(first.token, tuple(match.token for match in rest if match.exact >= first.exact))


def appended(decode: Decode, context: Sequence[int], tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each token with the characters it would add after the context."""
    before = decode(context)
    for token in tokens:
        after = decode([*context, token])
        yield token, after[len(before) :] if after.startswith(before) else decode([token])
