"""A model's tokenizer: which text a token writes and where it stands, and which token or tokens write a text.

A context is only ever decoded, token by token; it is never encoded again to find out what it was.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

from heta_lens._util.text_spans import Span
from heta_lens.model.token_matching import TAIL, Decode, Match, Spelled, appended, best_match, matches

StandIn: TypeAlias = Literal["pad", "space"]

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how SentencePiece names the tokens it falls back to, one per byte


class Spelling(NamedTuple):
    """Tokens, and the text that they write after a context."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class TokenizerWrapper:
    """A tokenizer as heta_lens uses it: ids in, text out. Without a tokenizer, tokens are written as their ids."""

    wrapped: Any

    def decode(self, ids: Sequence[int]) -> str:
        if self.wrapped is None:
            return "".join(f"<{token}>" for token in ids)
        return self.wrapped.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def write(self, token: int, context: Sequence[int] = ()) -> str:
        """A token as it is written after this context."""
        return next(text for _, text in appended(self.decode, context[-TAIL:], [token]))

    def name(self, token: int) -> str:
        """The tokenizer's own name for a token, which distinguishes tokens that are written the same."""
        convert = getattr(self.wrapped, "convert_ids_to_tokens", None)  # which a custom tokenizer may lack
        name = None if convert is None else convert(token)
        return name if isinstance(name, str) else self.decode([token])

    def is_byte(self, token: int) -> bool:
        return BYTE.fullmatch(self.name(token)) is not None

    def find(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> Spelled:
        """The token that writes ``text`` after this context, the most likely of several."""
        if self.wrapped is None:
            raise ValueError(f"target={text!r} is text, but the model has no tokenizer: give a token id")
        if not text:
            raise ValueError("target='' is empty: give the text of one token, or its id")
        candidates = self._matches(text, context, log_probs)
        return best_match(candidates) if candidates else refuse_text(self.decode, self.encoder(), text)

    def is_single(self, text: str) -> bool:
        """Whether it is encoded as one token, with or without its leading space; others may still be one."""
        encode = self.encoder()
        encoded = [encode(form) for form in (text, text.lstrip())]
        return any(len(ids) == 1 and self.decode(ids).strip() == text.strip() for ids in encoded)

    def spell(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[int]:
        """The tokens that write ``text`` after this context; if there are none, those that differ only in white space.

        A single token if one does, the same as `find` gives.
        """
        candidates = self._matches(text, context, log_probs) if text else []
        if candidates and candidates[0].exact and not candidates[0].byte:
            return [candidates[0].token]
        spellings = self._spellings(text, context)
        for spelling in spellings:
            if spelling.text == text and len(spelling.ids) > 1:
                return spelling.ids
        if candidates:
            return [candidates[0].token]
        for spelling in spellings:
            if spelling.text.strip() == text.strip():
                return spelling.ids
        written = [spelling.text for spelling in spellings]
        raise ValueError(f"{text!r} cannot be written by this model's tokenizer, which turns it into {written}")

    def _matches(self, text: str, context: Sequence[int], log_probs: Sequence[float]) -> list[Match]:
        length = len(self.wrapped) if hasattr(self.wrapped, "__len__") else 0
        tokens = _by_visible_text(self.wrapped, length, len(log_probs)).get(text.strip(), ())
        return matches(self.decode, tokens, log_probs, context, text, self.is_byte)

    def _spellings(self, text: str, context: Sequence[int]) -> list[Spelling]:
        """Ids that may write the text after this context, each with what it does write."""
        encode, tail = self.encoder(), list(context[-TAIL:])
        before = self.decode(tail)
        # A tokenizer that puts a blank before every text writes " ring" as "ring", and "?!" as a blank and "?!".
        encoded = [encode(form) for form in dict.fromkeys((text, text.lstrip()))]
        encoded += [ids[1:] for ids in encoded]
        return [Spelling(ids, self.decode([*tail, *ids]).removeprefix(before)) for ids in encoded if ids]

    def encoder(self) -> Callable[[str], list[int]]:
        """Text in, ids out: for text that is given to the model, never to find out what its context was."""
        tokenizer = deepcopy(self.wrapped)  # encoding resets its padding and truncation settings
        return partial(tokenizer.encode, add_special_tokens=False)

    @property
    def pad(self) -> int | None:
        return getattr(self.wrapped, "pad_token_id", None)

    @property
    def bos(self) -> int | None:
        return getattr(self.wrapped, "bos_token_id", None)

    @property
    def eos(self) -> int | None:
        return getattr(self.wrapped, "eos_token_id", None)

    @property
    def unknown(self) -> int | None:
        """The token in place of words that have none; GPT-2's is its BOS too, and never needed."""
        token = getattr(self.wrapped, "unk_token_id", None)
        return None if token == self.bos else token

    @property
    def filler(self) -> int | None:
        """The token that carries the least meaning: padding, or else end of text, or else unknown."""
        names = ("pad_token_id", "eos_token_id", "unk_token_id")
        return next((token for name in names if (token := getattr(self.wrapped, name, None)) is not None), None)

    @property
    def blank(self) -> int | None:
        """The token that writes a blank, if there is one."""
        return next(iter(self.encoder()(" ")), None) if self.wrapped is not None else None

    def stand_in(self, name: StandIn) -> int | None:
        """The token that takes the place of others: the filler, or the first that writes a blank (else the filler)."""
        return self.filler if name == "pad" or self.blank is None else self.blank

    def special(self, ids: Iterable[int]) -> list[bool]:
        """Which ids are control tokens: BOS, EOS, padding, a chat template's markers; never what unknown words become.

        Markers count that were added without a name, such as Gemma's end of turn.
        """
        added = getattr(self.wrapped, "added_tokens_decoder", {})
        special = {*getattr(self.wrapped, "all_special_ids", ()), *(key for key, one in added.items() if one.special)}
        special -= {self.unknown} - {self.eos}
        return [token in special for token in ids]


def refuse_text(decode: Decode, encode: Callable[[str], Sequence[int]], text: str) -> Spelled:
    """Raise an error that names the tokens which write a text that no single token writes."""
    written, spans = locate(decode, encode(text))
    tokens = [written[slice(*span)] for span in spans if span.start < span.stop]
    if not tokens or written.strip() != text.strip():
        raise ValueError(f"target={text!r} cannot be written by this model's tokenizer, which turns it into {tokens}")
    raise ValueError(
        f"target={text!r} is not a single token of this model but {len(tokens)}: {tokens}; "
        "explain the first of them, give a token id, or explain all of them as a span"
    )


@lru_cache(maxsize=4)
def _by_visible_text(tokenizer: Any, length: int, size: int) -> Mapping[str, Sequence[int]]:  # noqa: ARG001
    """Every token by what it writes without the white space around it, which does not depend on the context.

    ``length``, the tokenizer's length (where it has one), changes when tokens are added to it.
    """
    tokens: dict[str, list[int]] = defaultdict(list)
    for token, text in appended(TokenizerWrapper(tokenizer).decode, [0], range(size)):
        tokens[text.strip()].append(token)
    return dict(tokens)


def locate(decode: Decode, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """The decoded text and every token's span in it.

    Tokens that share one character (bytes of an emoji, say) all get that character's span.
    """
    text, spans = "", []
    anchor = done = 0  # decode from `anchor`, so that the cost stays linear; `done` tokens are in the text already
    for stop in range(1, len(ids) + 1):
        before, after = decode(ids[anchor:done]), decode(ids[anchor:stop])
        if after.endswith(INCOMPLETE) and stop < len(ids):
            continue
        added = after[len(before) :]
        spans += [Span(len(text), len(text) + len(added))] * (stop - done)
        text, anchor, done = text + added, done, stop
    return text, spans
