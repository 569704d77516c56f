"""What is removed as a whole: the sentences of a context, or its tokens, and what is predicted without them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.text import Splitter, check_ranges, check_splitter, is_finished, members, sentences, split, wording
from heta_lens._util.work import Done, Work
from heta_lens.methods.base import Scores, refuse_hooks
from heta_lens.methods.options import WithBatch, WithMask
from heta_lens.model.batching import Batches
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.coalitions import nothing_left, placed, read_without, removed, with_only
from heta_lens.prediction.masking import with_others_masked
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale

Members: TypeAlias = Bool[np.ndarray, "source pos"]
SHORT = 128  # tokens, of which a run takes hardly less time than one that begins in the middle

Read: TypeAlias = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]]


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

    @property
    def without_effect(self) -> Mapping[str, str]:
        alone = {
            "splitter": "source='token' (which splits no text)",
            "spread": "source='token' (whose sources are single tokens)",
        }
        return {
            **({"mask": "ablate='remove' (which masks nothing)"} if self.ablate == "remove" else {}),
            **(alone if self.source == "token" else {}),
        }

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for start, stop in self.query:
            if stop > len(prediction):
                raise ValueError(f"query has the range ({start}, {stop}), but the context ends at {len(prediction)}")
        fixed, own = self.sources(prediction)
        special = all(prediction.adapter.tokenizer.special(prediction.ids.tolist()))
        if not (len(own) or special) and (self.query or self.splitter):
            why = f"query={self.query}" if self.query else "the splitter"
            raise ValueError(f"{why} leaves no source: none of the {len(prediction)} tokens would get a score")
        if self.ablate == "remove":
            refuse_hooks(self, prediction, "moves tokens to other positions (unless ablate='mask')")
            if not fixed.any() and nothing_left(prediction) is None:
                raise ValueError(
                    "ablate='remove' may leave no token to read: keep a part with query=, or ablate='mask'"
                )

    def sources(self, prediction: Prediction) -> tuple[Bool[np.ndarray, "pos"], Members]:
        """Which tokens always stay, and the sources that the others make up; none goes beyond a chat's message."""
        ids = prediction.ids.tolist()
        writers = np.zeros(len(ids)) if prediction.prompt.chat is None else np.array(prediction.prompt.chat.owners)
        writers = writers[: len(ids)]
        fixed = np.array(prediction.adapter.tokenizer.special(ids)) | (writers < 0)
        for start, stop in self.query:
            fixed[start:stop] = True
        if self.source == "token":
            return fixed, np.eye(len(ids), dtype=bool)[~fixed]
        text, spans = locate(prediction.adapter.tokenizer.decode, ids)
        whole = members(text, spans, split(self.splitter or sentences, text), fixed)
        parts = [row & (writers == writer) for row in whole for writer in np.unique(writers[row])]
        own = np.array(parts, dtype=bool).reshape(-1, len(ids))
        if len(own) > 1 and not self.query and not is_finished(text) and own[-1, -1]:
            return fixed | own[-1], own[:-1]
        return fixed, own

    def coalitions(
        self, prediction: Prediction, scale: Scale, progress: Work
    ) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
        """How likely the target is after an ablation, as a function of what it leaves."""
        if self.ablate == "mask":
            return with_only(prediction, self.mask, scale, self.batch, progress)
        batches, done = prediction.prompt.batches(self.batch, len(prediction)), partial(progress.add, "forwards")
        return partial(removed, prediction, nothing=nothing_left(prediction), scale=scale, batches=batches, done=done)

    @torch.no_grad()
    def without_each(
        self, prediction: Prediction, own: Members, read: Read, progress: Work
    ) -> Float[np.ndarray, "source"]:
        """What ``read`` gives without each source in turn.

        Every run begins where its source did, except in a short context, of which several are run at once.
        """
        gone, length = torch.from_numpy(own), len(prediction)
        batches = prediction.prompt.batches(self.batch, length)
        if length <= SHORT and batches.of(length) > 2:
            values = self._whole_runs(prediction, ~gone, read, batches, partial(progress.add, "forwards"))
        else:
            values = torch.cat([self._read_without(prediction, row, read, progress) for row in gone])
        return values.cpu().double().numpy()

    def _whole_runs(
        self, prediction: Prediction, present: Bool[Tensor, "copy pos"], read: Read, batches: Batches, done: Done
    ) -> Float[Tensor, "copy"]:
        if self.ablate == "remove":
            return read_without(prediction, present, nothing_left(prediction), read, batches, done)
        logits_of = prediction.rerun().logits

        def run(states: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy"]:
            values = read(logits_of(states))
            done(len(states))
            return values

        return with_others_masked(prediction, present, prediction.mask_vector(self.mask), run, batches)

    def _read_without(
        self, prediction: Prediction, gone: Bool[Tensor, "pos"], read: Read, progress: Work
    ) -> Float[Tensor, "row"]:
        value = read(self._logits_without(prediction, gone))
        progress.add("forwards", 1)
        return value

    def _logits_without(self, prediction: Prediction, gone: Bool[Tensor, "pos"]) -> Float[Tensor, "row vocab"]:
        """What comes before the source stays as it is, and so do its keys and values."""
        embeddings, start = prediction.embeddings, int(gone.to(torch.uint8).argmax())
        after = gone[start:].to(embeddings.device)
        if self.ablate == "mask":
            states = torch.where(after[:, None], prediction.mask_vector(self.mask), embeddings[start:])
            return prediction.rerun(start).logits(states[None])
        states = embeddings[start:][~after]
        if len(states):
            return prediction.rerun(start, read=[start + len(states) - 1]).logits(states[None])[:, 0]
        begun = prediction.ids[:start] if start else prediction.ids.new_tensor([nothing_left(prediction)])
        return prediction.prompt.logits_of(begun[None])[:, 0]

    def spread_out(
        self, prediction: Prediction, own: Members, values: Float[np.ndarray, "source"]
    ) -> Float[Tensor, "pos"]:
        """The sources' scores at their tokens, and 0 elsewhere."""
        return placed(prediction, own, values / own.sum(1) if self.spread == "share" else values)


def nothing_to_score(prediction: Prediction, *names: str) -> Scores:
    """What a context without sources gets: zeros, and diagnostics of these names that are empty too."""
    facts: dict[str, Any] = {name: [] for name in ("sources", "source_positions", *names)}
    return Scores(torch.zeros_like(prediction.embeddings[:, 0]), facts)


def source_facts(prediction: Prediction, own: Members) -> dict[str, Any]:
    """Diagnostics that say what the sources are."""
    text, spans = locate(prediction.adapter.tokenizer.decode, prediction.ids.tolist())
    return {
        "sources": [wording(text, spans, row) for row in own],
        "source_positions": [tuple(row.nonzero()[0].tolist()) for row in own],
    }
