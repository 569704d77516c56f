"""ContextCite (Cohen-Wang 2024): a sparse linear model of the prediction, fitted to random ablations of sentences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.extras import check_extra
from heta_lens._util.options import MOST, AtLeast
from heta_lens._util.sentence_spans import (
    Splitter,
    check_ranges,
    check_splitter,
    members,
    sentences,
    split,
    wording,
)
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores, refuse_hooks
from heta_lens.methods.shared_options import WithBatch, WithMask, WithSeed
from heta_lens.model.tokenizer import locate
from heta_lens.prediction.coalitions import nothing_left, placed, removed, with_only, worths
from heta_lens.prediction.linear_fits import Linear, explained, lasso
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale

OFFICIAL = 64  # ablations


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextCite(WithMask, WithSeed, WithBatch):
    """The weights of ``log-odds of the target ≈ b + Σ w_s · [source s is present]``: above 0 speaks for the target.

    Sources are ablated at random, and w is fitted by LASSO on standardised columns. Special tokens and the query are
    not sources: they always stay, and get 0. ``diagnostics`` hold the ``sources``, their ``source_positions`` and
    ``source_weights``, the ``intercept``, and how well the model predicts the effect of ablations: ``fit``, R² on those
    it was fitted to, and ``held_out_fit`` on others.

    - ``source``: ``sentence``, or every ``token`` a source of its own
    - ``splitter``: a function that returns the sentences' spans ``(start, stop)`` of characters in the context's text;
      None ends them at ``.``, ``!``, ``?`` and line ends
    - ``query``: ranges ``(start, stop)`` of positions that are not explained, but belong to the question
    - ``ablate``: ``remove``, so that the rest moves together, or ``mask``
    - ``spread``: each token gets its ``share`` of its source's weight, or a ``copy`` of it
    - ``samples``: number of ablations to fit; None takes 64, for tokens four each if these are more
    - ``held_out``: number of further ablations, to evaluate the fit
    - ``keep``: the probability that a source stays
    - ``penalty``: on the absolute weights, against half the mean squared error
    - ``scale``: what is fitted: the target's ``log_odds``, ``log_prob``, ``prob`` or ``logit``
    - ``seed``: of the first ablation; each has a seed of its own
    """

    source: Literal["sentence", "token"] = "sentence"
    splitter: Annotated[Splitter | None, check_splitter] = None
    query: Annotated[tuple[tuple[int, int], ...], check_ranges] = ()
    ablate: Literal["remove", "mask"] = "remove"
    spread: Literal["share", "copy"] = "share"
    samples: Annotated[int | None, AtLeast(2, whole=True, most=MOST)] = None
    held_out: Annotated[int, AtLeast(0, whole=True, most=MOST)] = 16
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.5
    penalty: Annotated[float | int, AtLeast(0)] = 0.01
    scale: Scale = "log_odds"

    name: ClassVar = "context_cite"
    family: ClassVar = "perturbation"
    cost: ClassVar = "(samples + held_out) · F"
    scaled_by: ClassVar = ("samples", "held_out")
    adapted: ClassVar = (
        "one token is explained, not a response; tokens share their sentence's score, and are not tokenized again"
    )

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {
            **({"mask": "ablate='remove' (which masks nothing)"} if self.ablate == "remove" else {}),
            **({"splitter": "source='token' (which splits no text)"} if self.source == "token" else {}),
        }

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_extra("sklearn", f"method={self.name!r}")
        for start, stop in self.query:
            if stop > len(prediction):
                raise ValueError(f"query has the range ({start}, {stop}), but the context ends at {len(prediction)}")
        fixed, own = self._sources(prediction)
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

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": self._count(len(self._sources(prediction)[1])) + self.held_out}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        own = self._sources(prediction)[1]
        if not len(own):
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]), {"sources": []})
        count = self._count(len(own))
        masks = official_masks(self.seed, count + self.held_out, len(own), self.keep)
        values = worths(own, masks, self._ablated(prediction, progress))
        linear = lasso(masks[:count], values[:count], np.ones(count), self.penalty, standardised=True)
        shares = linear.weights / own.sum(1) if self.spread == "share" else linear.weights
        facts = self._source_facts(prediction, own, linear) | {
            "fit": explained(linear(masks[:count]), values[:count]),
            "held_out_fit": explained(linear(masks[count:]), values[count:]),
        }
        return Scores(placed(prediction, own, shares), facts)

    def _sources(self, prediction: Prediction) -> tuple[Bool[np.ndarray, "pos"], Bool[np.ndarray, "source pos"]]:
        """Which tokens always stay, and the sources that the others make up."""
        ids = prediction.ids.tolist()
        fixed = np.array(prediction.adapter.tokenizer.special(ids))
        for start, stop in self.query:
            fixed[start:stop] = True
        if self.source == "token":
            return fixed, np.eye(len(ids), dtype=bool)[~fixed]
        text, spans = locate(prediction.adapter.tokenizer.decode, ids)
        return fixed, members(text, spans, split(self.splitter or sentences, text), fixed)

    def _count(self, sources: int) -> int:
        if self.samples is not None:
            return self.samples
        return OFFICIAL if self.source == "sentence" else max(OFFICIAL, 4 * sources)

    def _ablated(
        self, prediction: Prediction, progress: Work
    ) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
        """How likely the target is after an ablation, as a function of what it leaves."""
        if self.ablate == "mask":
            return with_only(prediction, self.mask, self.scale, self.batch, progress)
        batches, done = prediction.prompt.batches(self.batch, len(prediction)), partial(progress.add, "forwards")
        return partial(
            removed, prediction, nothing=nothing_left(prediction), scale=self.scale, batches=batches, done=done
        )

    def _source_facts(
        self, prediction: Prediction, own: Bool[np.ndarray, "source pos"], linear: Linear
    ) -> dict[str, Any]:
        text, spans = locate(prediction.adapter.tokenizer.decode, prediction.ids.tolist())
        return {
            "sources": [wording(text, spans, row) for row in own],
            "source_positions": [tuple(row.nonzero()[0].tolist()) for row in own],
            "source_weights": linear.weights.tolist(),
            "intercept": linear.intercept,
        }


def official_masks(seed: int, count: int, sources: int, keep: float | int) -> Bool[np.ndarray, "sample source"]:
    """One random generator per ablation, as in the authors' code."""
    every = [
        np.random.RandomState(seed + sample).choice([False, True], size=sources, p=[1 - keep, keep])
        for sample in range(count)
    ]
    return np.array(every)
