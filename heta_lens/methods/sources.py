"""Sources: the sentences or tokens of a context that are removed as a whole, and predictions without them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.text import END, members, sentences
from heta_lens.methods.base import Scores, WithBatch, WithMask, refuse_hooks
from heta_lens.prediction.coalitions import nothing_left, placed, removed, with_only
from heta_lens.prediction.masking import with_others_masked
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale

Members: TypeAlias = Bool[np.ndarray, "source pos"]
Splitter: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]
SHORT = 128  # tokens: a run of so few takes hardly more time than a run that begins in the middle

Read: TypeAlias = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]]


def check_splitter(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r} must be a function: text -> spans (start, stop) of its characters")


def check_ranges(name: str, ranges: Any) -> None:
    """Refuse values other than pairs of whole numbers, the first below the second."""
    for start, stop in pairs(ranges, f"{name}={ranges!r} must be pairs (start, stop) of positions, such as ((0, 5),)"):
        if not 0 <= start < stop:
            raise ValueError(f"{name}={ranges!r} has the pair ({start}, {stop}), which must have 0 <= start < stop")


def pairs(given: Any, refusal: str) -> list[tuple[int, int]]:
    try:
        return [(index(start), index(stop)) for start, stop in given]
    except (TypeError, ValueError):
        raise TypeError(refusal) from None


class Values(NamedTuple):
    """Values of sources, further diagnostics, and values of pairs of tokens."""

    sources: Float[np.ndarray, "source"]
    facts: Mapping[str, Any] = {}
    pairs: Float[Tensor, "pos pos"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class WithSources(WithMask, WithBatch):
    """
    - ``source``: ``sentence``, or every ``token`` a source of its own
    - ``splitter``: a function that returns the sentences' spans ``(start, stop)`` of characters in the context's text;
      None ends them at ``.``, ``!``, ``?`` and line ends
    - ``query``: ranges ``(start, stop)`` of positions that are not explained, but belong to the question; without any,
      the unfinished sentence that the target continues, if there are others
    - ``ablate``: ``remove``, so that the rest moves together, or ``mask``
    - ``spread``: each token gets its ``share`` of its source's score, or a ``copy`` of it
    """

    source: Literal["sentence", "token"] = "sentence"
    splitter: Annotated[Splitter | None, check_splitter] = None
    query: Annotated[tuple[tuple[int, int], ...], check_ranges] = ()
    ablate: Literal["remove", "mask"] = "remove"
    spread: Literal["share", "copy"] = "share"

    family: ClassVar = "perturbation"
    kept_as: ClassVar = "source_scores"  # name of the values in the diagnostics

    @property
    def without_effect(self) -> Mapping[str, str]:
        unused = {"mask": "ablate='remove' (which masks nothing)"} if self.ablate == "remove" else {}
        if self.source == "token":
            unused["splitter"] = "source='token' (which splits no text)"
            unused["spread"] = "source='token' (whose sources are single tokens)"
        return unused

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for start, stop in self.query:
            if stop > len(prediction):
                raise ValueError(f"query has the range ({start}, {stop}), but the context ends at {len(prediction)}")
        fixed, sources = self.sources(prediction)
        special = all(prediction.adapter.tokenizer.special(prediction.ids.tolist()))
        if not (len(sources) or special) and (self.query or self.splitter):
            why = f"query={self.query}" if self.query else "the splitter"
            raise ValueError(f"{why} leaves no source: none of the {len(prediction)} tokens would get a score")
        if self.ablate == "remove":
            refuse_hooks(self, prediction, "moves tokens to other positions (unless ablate='mask')")
            if not fixed.any() and nothing_left(prediction) is None:
                raise ValueError("ablate='remove' may leave no token: keep a part with query=, or ablate='mask'")

    def sources(self, prediction: Prediction) -> tuple[Bool[np.ndarray, "pos"], Members]:
        """Return the tokens that always stay, and the sources; no source goes beyond a chat's message."""
        ids, chat = prediction.ids.tolist(), prediction.prompt.chat
        writers = np.zeros(len(ids)) if chat is None else np.array(chat.owners)[: len(ids)]
        fixed = np.array(prediction.adapter.tokenizer.special(ids)) | (writers < 0)
        for start, stop in self.query:
            fixed[start:stop] = True
        if self.source == "token":
            return fixed, np.eye(len(ids), dtype=bool)[~fixed]
        text, spans = prediction.located
        whole = members(text, spans, split(self.splitter or sentences, text), fixed)
        parts = [row & (writers == writer) for row in whole for writer in np.unique(writers[row])]
        sources = np.array(parts, dtype=bool).reshape(-1, len(ids))
        finished = any(match.end() == len(text) for match in END.finditer(text))
        if len(sources) > 1 and not self.query and not finished and sources[-1, -1]:
            return fixed | sources[-1], sources[:-1]
        return fixed, sources

    def coalitions(
        self, prediction: Prediction, scale: Scale
    ) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
        """Return the target's likelihood as a function of the tokens that stay."""
        if self.ablate == "mask":
            return with_only(prediction, self.mask, scale, self.batch)
        batches = prediction.prompt.batches(self.batch, len(prediction))
        read = partial(prediction.read, scale=scale)
        return partial(removed, prediction, read=read, batches=batches)

    @torch.no_grad()
    def without_each(self, prediction: Prediction, sources: Members, read: Read) -> Float[np.ndarray, "source"]:
        """Apply ``read`` to the logits without each source in turn.

        Every run begins where its source did, except in a short context, which is run in several copies at once.
        """
        gone, length = torch.from_numpy(sources), len(prediction)
        batches = prediction.prompt.batches(self.batch, length)
        if length > SHORT or batches.of(length) <= 2:
            values = torch.cat([read(self._logits_without(prediction, row)) for row in gone])
        elif self.ablate == "remove":
            values = removed(prediction, ~gone, read, batches)
        else:
            rerun = prediction.rerun()

            def run(states: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy"]:
                return read(rerun.logits(states))

            values = with_others_masked(prediction, ~gone, prediction.mask_vector(self.mask), run, batches)
        return values.cpu().double().numpy()

    def _logits_without(self, prediction: Prediction, gone: Bool[Tensor, "pos"]) -> Float[Tensor, "row vocab"]:
        """Return the logits without a source; tokens before the source keep the clean keys and values."""
        start = int(gone.to(torch.uint8).argmax())
        states, after = prediction.embeddings[start:], gone[start:].to(prediction.embeddings.device)
        if self.ablate == "mask":
            masked = torch.where(after[:, None], prediction.mask_vector(self.mask), states)
            return prediction.rerun(start).logits(masked[None])
        states = states[~after]
        if len(states):
            return prediction.rerun(start, read=[start + len(states) - 1]).logits(states[None])[:, 0]
        begun = prediction.ids[:start] if start else prediction.ids.new_tensor([nothing_left(prediction)])
        return prediction.prompt.logits_of(begun[None])[:, 0]

    def explain(self, prediction: Prediction) -> Scores:
        """Pass the values of sources on to tokens, and name the sources in the diagnostics."""
        sources, (text, spans) = self.sources(prediction)[1], prediction.located
        named = {
            "sources": [wording(text, spans, row) for row in sources],
            "source_positions": [tuple(row.nonzero()[0].tolist()) for row in sources],
        }
        if not len(sources):
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]), named | {self.kept_as: []})
        values, facts, interactions = self.values(prediction, sources)
        shares = values / sources.sum(1) if self.spread == "share" else values
        facts = {**named, self.kept_as: values.tolist(), **facts}
        return Scores(placed(prediction, sources, shares), facts, interactions=interactions)

    @abstractmethod
    def values(self, prediction: Prediction, sources: Members) -> Values:
        """Compute the values of at least one source."""


def split(splitter: Splitter, text: str) -> list[tuple[int, int]]:
    """Return the spans of a splitter; refuse spans outside the text and spans out of order."""
    returned, end = splitter(text), 0
    spans = pairs(returned, f"splitter returned {returned!r}, which are not pairs (start, stop) of characters")
    for start, stop in spans:
        if not end <= start < stop <= len(text):
            raise ValueError(
                f"splitter returned ({start}, {stop}), which is not between {end} and the text's end, {len(text)}: "
                "spans (start, stop) of characters must follow one another"
            )
        end = stop
    return spans


def wording(text: str, spans: Sequence[tuple[int, int]], row: Bool[np.ndarray, "pos"]) -> str:
    """Return the text of a row of tokens, with shared characters once."""
    distinct = dict.fromkeys(span for span, there in zip(spans, row, strict=True) if there)
    return "".join(text[slice(*span)] for span in distinct).strip()
