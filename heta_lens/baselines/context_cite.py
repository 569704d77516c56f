"""ContextCite (Cohen-Wang 2024): a sparse linear model of what the prediction does without some of the sentences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens.baselines.baseline import Baseline, Found, refuse_hooks
from heta_lens.coalitions import nothing_left, placed, removed, with_only, worths
from heta_lens.masking import Masking
from heta_lens.options import MOST, AtLeast, Batch, Seed
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale
from heta_lens.sources import Splitter, check_ranges, check_splitter, members, sentences, split, wording
from heta_lens.surrogates import Linear, explained, lasso
from heta_lens.text import locate

OFFICIAL = 64  # ablations


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextCite(Baseline):
    """The weights of ``log-odds of the target ≈ b + Σ w_s · [source s is there]``: above 0 speaks for the target.

    Sources are taken away at random, and w fitted by LASSO on standardised columns. Special tokens and the query are
    no sources, always stay, and get 0. ``diagnostics`` tell the ``sources``, their ``source_positions`` and
    ``source_weights``, the ``intercept``, and how well this predicts what the model does: ``fit``, R² on the ablations
    it was fitted to, ``held_out_fit`` on others.

    - ``source``: ``sentence``, or every ``token`` a source of its own
    - ``splitter``: a function that finds the sentences' spans ``(start, stop)`` of characters in the context's text;
      None ends them at ``.``, ``!``, ``?`` and line ends
    - ``query``: ranges ``(start, stop)`` of positions that are not explained but asked with
    - ``ablate``: ``remove``, so that the rest moves together, or ``mask``
    - ``mask``: what a masked token's embedding becomes: ``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
      vector
    - ``spread``: each token gets its ``share`` of its source's weight, or a ``copy`` of it
    - ``samples``: how many ablations to fit; None takes 64, for tokens four each if these are more
    - ``held_out``: how many more to judge by
    - ``keep``: how likely each source stays
    - ``penalty``: of the size of the weights, against half the mean squared error
    - ``scale``: what is fitted, the target's ``log_odds``, ``log_prob``, ``prob`` or ``logit``
    - ``seed``: of the first ablation; each has a seed of its own
    - ``batch``: copies of the context run at once
    """

    source: Literal["sentence", "token"] = "sentence"
    splitter: Annotated[Splitter | None, check_splitter] = None
    query: Annotated[tuple[tuple[int, int], ...], check_ranges] = ()
    ablate: Literal["remove", "mask"] = "remove"
    mask: Masking = "zero"
    spread: Literal["share", "copy"] = "share"
    samples: Annotated[int | None, AtLeast(2, whole=True, most=MOST)] = None
    held_out: Annotated[int, AtLeast(0, whole=True, most=MOST)] = 16
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.5
    penalty: Annotated[float | int, AtLeast(0)] = 0.01
    scale: Scale = "log_odds"
    seed: Seed = 0
    batch: Batch = "auto"

    name: ClassVar = "context_cite"
    cost: ClassVar = "(samples + held_out) · F"
    adapted: ClassVar = (
        "one token is cited, not a response; tokens share their sentence's score, and stay what they are"
    )

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {
            **({"mask": "ablate='remove' (which masks nothing)"} if self.ablate == "remove" else {}),
            **({"splitter": "source='token' (which splits no text)"} if self.source == "token" else {}),
        }

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for start, stop in self.query:
            if stop > len(prediction):
                raise ValueError(f"query has the range ({start}, {stop}), but the context ends at {len(prediction)}")
        fixed, own = self._found(prediction)
        special = all(prediction.lens.speller.special(prediction.ids.tolist()))
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
        return {"forwards": self._count(len(self._found(prediction)[1])) + self.held_out}

    def explain(self, asked: Prediction, work: Work) -> Found:
        own = self._found(asked)[1]
        if not len(own):
            return torch.zeros_like(asked.embeddings[:, 0]), {"sources": []}
        count = self._count(len(own))
        masks = official_masks(self.seed, count + self.held_out, len(own), self.keep)
        values = worths(own, masks, self._left(asked, work))
        found = lasso(masks[:count], values[:count], np.ones(count), self.penalty, standardised=True)
        shares = found.weights / own.sum(1) if self.spread == "share" else found.weights
        facts = self._facts(asked, own, found) | {
            "fit": explained(found(masks[:count]), values[:count]),
            "held_out_fit": explained(found(masks[count:]), values[count:]),
        }
        return placed(asked, own, shares), facts

    def _found(self, asked: Prediction) -> tuple[Bool[np.ndarray, "pos"], Bool[np.ndarray, "source pos"]]:
        """Which tokens always stay, and which sources the others make up."""
        ids = asked.ids.tolist()
        fixed = np.array(asked.lens.speller.special(ids))
        for start, stop in self.query:
            fixed[start:stop] = True
        if self.source == "token":
            return fixed, np.eye(len(ids), dtype=bool)[~fixed]
        text, spans = locate(asked.lens.speller.decode, ids)
        return fixed, members(text, spans, split(self.splitter or sentences, text), fixed)

    def _count(self, sources: int) -> int:
        if self.samples is not None:
            return self.samples
        return OFFICIAL if self.source == "sentence" else max(OFFICIAL, 4 * sources)

    def _left(self, asked: Prediction, work: Work) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
        """How likely the target is by what an ablation leaves."""
        if self.ablate == "mask":
            return with_only(asked, self.mask, self.scale, self.batch, work)
        batches, done = asked.prompt.batches(self.batch, len(asked)), partial(work.add, "forwards")
        return partial(removed, asked, nothing=nothing_left(asked), scale=self.scale, batches=batches, done=done)

    def _facts(self, asked: Prediction, own: Bool[np.ndarray, "source pos"], found: Linear) -> dict[str, Any]:
        text, spans = locate(asked.lens.speller.decode, asked.ids.tolist())
        return {
            "sources": [wording(text, spans, row) for row in own],
            "source_positions": [tuple(row.nonzero()[0].tolist()) for row in own],
            "source_weights": found.weights.tolist(),
            "intercept": found.intercept,
        }


def official_masks(seed: int, count: int, sources: int, keep: float | int) -> Bool[np.ndarray, "sample source"]:
    """One generator for each, of the kind and in the order of the authors' code."""
    every = [
        np.random.RandomState(seed + sample).choice([False, True], size=sources, p=[1 - keep, keep])
        for sample in range(count)
    ]
    return np.array(every)
