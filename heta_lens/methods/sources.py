"""Sources: the sentences or tokens of a context that are removed as a whole, and predictions without them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.text import END, Span, members, owners, sentences
from heta_lens.methods.base import Scores, WithBatch, WithMask, is_pair, refuse_hooks
from heta_lens.prediction.coalitions import nothing_left, placed, removed
from heta_lens.prediction.masking import ablated, mask_vector
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale

Members: TypeAlias = Bool[np.ndarray, "source pos"]
Splitter: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]
SHORT = 128  # tokens: a run of so few takes hardly more time than a run that begins in the middle

Read: TypeAlias = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]]


def check_ranges(name: str, ranges: Any) -> None:
    spans = ranges if isinstance(ranges, list | tuple) else [ranges]
    if not all(is_pair(span) and 0 <= span[0] < span[1] for span in spans):
        raise ValueError(f"{name}={ranges!r} must be pairs (start, stop) of positions, such as ((0, 5),)")


def checked_spans(spans: Sequence[tuple[int, int]], length: int) -> Sequence[tuple[int, int]]:
    """Refuse spans from a user's splitter that leave the text, or are out of order."""
    end = 0
    for span in spans:
        if not (is_pair(span) and end <= span[0] <= span[1] <= length):
            raise ValueError(f"splitter returned {brief(span)}: return (start, stop) in order, of {length} characters")
        end = span[1]
    return spans


class Values(NamedTuple):
    """Values of sources, further diagnostics, and values of pairs of tokens."""

    sources: Float[np.ndarray, "source"]
    facts: Mapping[str, Any] = {}
    pairs: Float[Tensor, "pos pos"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class WithSources(WithMask, WithBatch):
    """
    - ``source``: ``sentence``, or every ``token`` a source of its own; special tokens, a chat's template and the query
      are not sources: they always stay, and get 0. ``diagnostics`` hold the ``sources``, their ``source_positions`` and
      ``source_scores``
    - ``splitter``: a function that returns the sentences' spans ``(start, stop)`` of characters in the context's text;
      None ends them at ``.``, ``!``, ``?`` and line ends
    - ``query``: ranges ``(start, stop)`` of positions that are not explained, but belong to the question; without any,
      the unfinished sentence that the target continues, if there are others
    - ``ablate``: ``remove``, so that later tokens move up, or ``mask``
    """

    source: Literal["sentence", "token"] = "sentence"
    splitter: Splitter | None = None
    query: Annotated[tuple[tuple[int, int], ...], check_ranges] = ()
    ablate: Literal["remove", "mask"] = "remove"

    family: ClassVar = "perturbation"

    @property
    def without_effect(self) -> Mapping[str, str]:
        unused = {"mask": "ablate='remove' (which masks nothing)"} if self.ablate == "remove" else {}
        if self.source == "token":
            unused["splitter"] = "source='token' (which splits no text)"
        return unused

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for start, stop in self.query:
            if stop > len(prediction):
                raise ValueError(f"query has the range ({start}, {stop}), but the context ends at {len(prediction)}")
        if self.query and not len(self.sources(prediction)):
            raise ValueError(
                f"query={self.query} leaves no source: none of the {len(prediction)} tokens would get a score"
            )
        if self.ablate == "remove":
            refuse_hooks(self, prediction, "moves tokens to other positions (unless ablate='mask')")

    def sources(self, prediction: Prediction) -> Members:
        """Return the sources; no source goes beyond a chat's message."""
        ids, chat = prediction.ids.tolist(), prediction.prompt.chat
        writers = np.zeros(len(ids)) if chat is None else np.array(chat.owners)[: len(ids)]
        fixed = np.array(prediction.tokenizer.special(ids)) | (writers < 0)
        for start, stop in self.query:
            fixed[start:stop] = True
        if self.source == "token":
            return np.eye(len(ids), dtype=bool)[~fixed]
        text, spans = prediction.located
        ranges = checked_spans((self.splitter or sentences)(text), len(text))
        if self.splitter is not None:  # what the user's spans leave out belongs to no source
            fixed |= np.array(owners(text, spans, [[Span(*ends)] for ends in ranges])) < 0
        whole = members(text, spans, ranges, fixed)
        parts = [row & (writers == writer) for row in whole for writer in np.unique(writers[row])]
        sources = np.array(parts, dtype=bool).reshape(-1, len(ids))
        finished = any(match.end() == len(text) for match in END.finditer(text))
        continued = len(sources) > 1 and not self.query and not finished and sources[-1, -1]
        return sources[:-1] if continued else sources

    @torch.no_grad()
    def with_present(
        self, prediction: Prediction, present: Bool[Tensor, "copy pos"], read: Read
    ) -> Float[Tensor, "copy"]:
        """Apply ``read`` to the logits after the tokens ``present`` only."""
        batches = prediction.batches(self.batch)
        if self.ablate == "remove":
            return removed(prediction, present, read, batches)
        return ablated(prediction, present, mask_vector(prediction, self.mask), read, batches)

    def coalitions(
        self, prediction: Prediction, scale: Scale
    ) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
        """Return the target's likelihood as a function of the tokens that stay."""
        return partial(self.with_present, prediction, read=partial(prediction.read, scale=scale))

    @torch.no_grad()
    def without_each(self, prediction: Prediction, sources: Members, read: Read) -> Float[np.ndarray, "source"]:
        """Apply ``read`` to the logits without each source in turn.

        A run that removes its source begins there, except in a short context, which is run in several copies at once.
        """
        gone = torch.from_numpy(sources)
        if self.ablate == "remove" and len(prediction) > SHORT:
            values = torch.cat([read(removed_alone(prediction, row)) for row in gone])
        else:
            values = self.with_present(prediction, ~gone, read)
        return values.cpu().double().numpy()

    def explain(self, prediction: Prediction) -> Scores:
        """Pass the values of sources on to tokens, and name the sources in the diagnostics."""
        sources, (text, spans) = self.sources(prediction), prediction.located
        named: dict[str, Any] = {
            "sources": [wording(text, spans, row) for row in sources],
            "source_positions": [tuple(row.nonzero()[0].tolist()) for row in sources],
        }
        if not len(sources):
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]), named | {"source_scores": []})
        values, facts, interactions = self.values(prediction, sources)
        scores = placed(prediction, sources, values / sources.sum(1))
        return Scores(scores, {**named, "source_scores": values.tolist(), **facts}, interactions=interactions)

    @abstractmethod
    def values(self, prediction: Prediction, sources: Members) -> Values:
        """Compute the values of at least one source."""


def removed_alone(prediction: Prediction, gone: Bool[Tensor, "pos"]) -> Float[Tensor, "row vocab"]:
    """Return the logits without a source; tokens before the source keep the clean keys and values."""
    start = int(gone.to(torch.uint8).argmax())
    states = prediction.embeddings[start:][~gone[start:].to(prediction.embeddings.device)]
    if len(states):
        return prediction.rerun(start, read=[start + len(states) - 1]).logits(states[None])[:, 0]
    begun = prediction.ids[:start] if start else prediction.ids.new_tensor([nothing_left(prediction)])
    return prediction.logits_of(begun[None])[:, 0]


def wording(text: str, spans: Sequence[tuple[int, int]], row: Bool[np.ndarray, "pos"]) -> str:
    """Return the text of a row of tokens, with shared characters once."""
    distinct = dict.fromkeys(span for span, there in zip(spans, row, strict=True) if there)
    return "".join(text[slice(*span)] for span in distinct).strip()
