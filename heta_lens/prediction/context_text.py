"""A context as text: where its tokens are, how each is written, and which tokens write a passage."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from heta_lens._util.text_spans import Span, tokens_of
from heta_lens.model.tokenizer import TokenizerWrapper, locate


@dataclass(frozen=True, eq=False)
class ContextText:
    tokenizer: TokenizerWrapper
    ids: Sequence[int]

    @cached_property
    def located(self) -> tuple[str, list[Span]]:
        """The text, and every token's span in it."""
        return locate(self.tokenizer.decode, self.ids)

    def positions_of(self, passage: str) -> list[int]:
        """The tokens that write a passage, which must occur in the text exactly once."""
        return tokens_of(passage, *self.located)

    @property
    def written(self) -> tuple[str, ...]:
        """Every token as it is written in the text; of those that share a character only the last shows it."""
        text, spans = self.located
        shared = [span == after for span, after in pairwise([*spans, None])]
        return tuple(
            self.tokenizer.write(token) if partial else text[span.start : span.stop]
            for token, span, partial in zip(self.ids, spans, shared, strict=True)
        )
