"""ContextCite (Cohen-Wang 2024): a sparse linear model of the prediction, fitted to random ablations of sentences."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool

from heta_lens._util.extras import check_extra
from heta_lens._util.options import MOST, AtLeast
from heta_lens._util.work_counting import Work
from heta_lens.methods.base import Scores
from heta_lens.methods.perturbation.sources import WithSources, nothing_to_score, source_facts
from heta_lens.methods.shared_options import WithSeed
from heta_lens.prediction.coalitions import worths
from heta_lens.prediction.linear_fits import explained, lasso
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.readout import Scale

OFFICIAL = 64  # ablations


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextCite(WithSources, WithSeed):
    """The weights of ``log-odds of the target ≈ b + Σ w_s · [source s is present]``: above 0 speaks for the target.

    Sources are ablated at random, and w is fitted by LASSO on standardised columns. Special tokens, a chat's template
    and the query are not sources: they always stay, and get 0. ``diagnostics`` hold the ``sources``, their
    ``source_positions`` and ``source_weights``, the ``intercept``, and how well the model predicts the effect of
    ablations: ``fit``, R² on those it was fitted to, and ``held_out_fit`` on others.

    - ``samples``: number of ablations to fit; None takes 64, for tokens four each if these are more
    - ``held_out``: number of further ablations, to evaluate the fit
    - ``keep``: the probability that a source stays
    - ``penalty``: on the absolute weights, against half the mean squared error
    - ``scale``: what is fitted: the target's ``log_odds``, ``log_prob``, ``prob`` or ``logit``
    - ``seed``: of the first ablation's seed, which is drawn for each prompt; those after it count up from there
    """

    samples: Annotated[int | None, AtLeast(2, whole=True, most=MOST)] = None
    held_out: Annotated[int, AtLeast(0, whole=True, most=MOST)] = 16
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.5
    penalty: Annotated[float | int, AtLeast(0)] = 0.01
    scale: Scale = "log_odds"

    name: ClassVar = "context_cite"
    paper: ClassVar[str] = (
        "Cohen-Wang et al., ContextCite: attributing model generation to context, NeurIPS 2024, arXiv:2409.00729"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "(samples + held_out) · F"
    scaled_by: ClassVar = ("samples", "held_out")
    adapted: ClassVar = (
        "one token is explained, not a response; tokens share their sentence's score, and are not tokenized again"
    )

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_extra("sklearn", f"method={self.name!r}")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": self._count(len(self.sources(prediction)[1])) + self.held_out}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        own = self.sources(prediction)[1]
        if not len(own):
            return nothing_to_score(prediction, "source_weights")
        count = self._count(len(own))
        first = int(prompt_generator(self.seed, prediction.ids).integers(2**31))  # far from the next seed's
        masks = official_masks(first, count + self.held_out, len(own), self.keep)
        values = worths(own, masks, self.coalitions(prediction, self.scale, progress))
        linear = lasso(masks[:count], values[:count], np.ones(count), self.penalty, standardised=True)
        facts = source_facts(prediction, own) | {
            "source_weights": linear.weights.tolist(),
            "intercept": linear.intercept,
            "fit": explained(linear(masks[:count]), values[:count]),
            "held_out_fit": explained(linear(masks[count:]), values[count:]),
        }
        return Scores(self.spread_out(prediction, own, linear.weights), facts)

    def _count(self, sources: int) -> int:
        if self.samples is not None:
            return self.samples
        return OFFICIAL if self.source == "sentence" else max(OFFICIAL, 4 * sources)


def official_masks(seed: int, count: int, sources: int, keep: float | int) -> Bool[np.ndarray, "sample source"]:
    """Draw ablations as the authors' code does, one random generator for each, given the seed of the first."""
    every = [
        np.random.RandomState(seed + sample).choice([False, True], size=sources, p=[1 - keep, keep])
        for sample in range(count)
    ]
    return np.array(every)
