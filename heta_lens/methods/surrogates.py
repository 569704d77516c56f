"""Surrogates fitted to random ablations: LIME, KernelSHAP and ContextCite."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool

from heta_lens._util.options import COUNT, AtLeast
from heta_lens._util.python import check_extra, warn
from heta_lens._util.work import Work
from heta_lens.methods.base import Scores, WithBatch, WithBos, WithMask, WithScale, WithSeed
from heta_lens.methods.sources import Members, Values, WithSources
from heta_lens.prediction import coalitions
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale

FEW, ENOUGH = 10, 512  # tokens whose coalitions are all run, and the coalitions that are run of more tokens
OFFICIAL = 64  # ablations of ContextCite


@dataclass(frozen=True, eq=False, kw_only=True)
class Lime(WithMask, WithBos, WithScale, WithSeed, WithBatch):
    """LIME (Ribeiro 2016) on tokens: a linear model of the prediction, fitted to random maskings of the context.

    The coefficients of ``g(X with only tokens z) ≈ b + Σ a_i z_i``, fitted to random z; above 0 is for the target.

    Samples are weighted by how close they are to the whole context, ``exp(-(1 - cos(z, 1))² / width²)``.
    ``diagnostics["fit"]`` is the share of the samples' variance that the linear model explains, R².

    - ``samples``: number of random z, beside the whole context; None takes two per token, but at least 200
    - ``keep``: the probability that a token stays unmasked
    - ``width``: of the kernel that weights the samples
    - ``penalty``: on the squared coefficients, against the sum of squared errors
    """

    samples: Annotated[int | None, COUNT] = None
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.7
    width: Annotated[float | int, AtLeast(1e-6)] = 0.25
    penalty: Annotated[float | int, AtLeast(0)] = 1.0

    name: ClassVar = "lime"
    paper: ClassVar[str] = (
        "Ribeiro, Singh & Guestrin, “Why should I trust you?”: explaining the predictions of any classifier, KDD "
        "2016, arXiv:1602.04938"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · F"
    scaled_by: ClassVar = ("samples",)
    adapted: ClassVar = "the authors mask words, not tokens, and leave the surrogate model open"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=1 + self._count(len(coalitions.each_token(prediction, self.keep_bos))))

    def explain(self, prediction: Prediction) -> Scores:
        members = coalitions.each_token(prediction, self.keep_bos)
        players = len(members)
        if not players:
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        count = self._count(players)
        if count < players:
            warn(f"samples={count} are fewer than the {players} tokens: the penalty decides what they leave open")
        drawn = prompt_generator(self.seed, prediction.ids).random((count, players)) < self.keep
        masks = np.concatenate([np.ones((1, players), dtype=bool), drawn])
        values = coalitions.worths(members, masks, coalitions.with_only(prediction, self.mask, self.scale, self.batch))
        distances = 1 - np.sqrt(masks.mean(1))  # by the cosine to the whole context: √(k/M) for k tokens of M
        weights = np.exp(-((distances / self.width) ** 2))
        linear = coalitions.ridge(masks, values, weights, self.penalty)
        facts = {"intercept": linear.intercept, "fit": coalitions.explained(linear(masks), values, weights)}
        return Scores(coalitions.placed(prediction, members, linear.weights), facts)

    def _count(self, players: int) -> int:
        return max(200, 2 * players) if self.samples is None else self.samples


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelShap(WithMask, WithBos, WithScale, WithSeed, WithBatch):
    """KernelSHAP (Lundberg 2017): Shapley values of the tokens, by weighted least squares over coalitions.

    Shapley values of ``v(S) = g(X with only the tokens S)``: above 0 speaks for the target.

    ``Σ a_i = v(all) - v(none)`` always holds: the fit is constrained to it. The values are exact if every coalition is
    run (``diagnostics["exact"]``); else they are fitted to random coalitions, drawn in proportion to their kernel
    weight, each with its complement.

    - ``samples``: the most coalitions to run, beside the empty and the full one: all of them if they are no more, else
      random ones, at least two per token; None takes all for up to 10 tokens, else 512 or two per token
    """

    samples: Annotated[int | None, COUNT] = None

    name: ClassVar = "kernel_shap"
    paper: ClassVar[str] = (
        "Lundberg & Lee, A unified approach to interpreting model predictions, NeurIPS 2017, arXiv:1705.07874"
    )
    family: ClassVar = "perturbation"
    cost: ClassVar = "samples · F"
    scaled_by: ClassVar = ("samples",)

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        players = len(coalitions.each_token(prediction, self.keep_bos))
        least = min(2 * players, 2**players - 2)
        if self.samples is not None and self.samples < least:
            raise ValueError(f"samples={self.samples} are too few for {players} tokens: give at least {least}, or None")

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=2 + self._count(len(coalitions.each_token(prediction, self.keep_bos))))

    def explain(self, prediction: Prediction) -> Scores:
        members = coalitions.each_token(prediction, self.keep_bos)
        players = len(members)
        if not players:
            return Scores(torch.zeros_like(prediction.embeddings[:, 0]))
        if exact := self._exact(players):
            masks = coalitions.every_coalition(players)
            weights = coalitions.kernel(masks.sum(1), players)
        else:
            generator = prompt_generator(self.seed, prediction.ids)
            masks = coalitions.random_coalitions(generator, players, self._count(players), paired=True)
            weights = np.ones(len(masks))
        ends = np.array([[False], [True]]).repeat(players, 1)
        likelihoods = coalitions.with_only(prediction, self.mask, self.scale, self.batch)
        empty, full, *values = coalitions.worths(members, np.concatenate([ends, masks]), likelihoods).tolist()
        shares = coalitions.shapley(masks, np.array(values), weights, empty, full)
        gap = abs(full - empty - float(shares.sum()))
        return Scores(coalitions.placed(prediction, members, shares), {"exact": exact, "completeness_gap": gap})

    def _exact(self, players: int) -> bool:
        return players <= FEW if self.samples is None else 2**players - 2 <= self.samples

    def _count(self, players: int) -> int:
        if self._exact(players):
            return max(0, 2**players - 2)  # without the empty and the full one
        return max(ENOUGH, 2 * players) if self.samples is None else self.samples


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextCite(WithSources, WithSeed):
    """ContextCite (Cohen-Wang 2024): a sparse linear model of the prediction, fitted to random ablations of sentences.

    The weights of ``g(X with only some sources) ≈ b + Σ w_s · [source s is present]``: above 0 speaks for the target.

    Sources are ablated at random, and w is fitted by LASSO on standardised columns. ``diagnostics`` hold the
    ``intercept``, and how well the model predicts the effect of ablations: ``fit``, R² on those it was fitted to, and
    ``held_out_fit`` on others.

    - ``samples``: number of ablations to fit; None takes 64, for tokens four each if these are more
    - ``held_out``: number of further ablations, to evaluate the fit
    - ``keep``: the probability that a source stays
    - ``penalty``: on the absolute weights, against half the mean squared error
    - ``scale``: what is fitted: the target's ``log_odds``, ``log_prob``, ``prob`` or ``logit``
    - ``seed``: of the first ablation's seed, which is drawn for each prompt; those after it count up from there
    """

    samples: Annotated[int | None, AtLeast(2, whole=True)] = None
    held_out: Annotated[int, AtLeast(0, whole=True)] = 16
    keep: Annotated[float | int, AtLeast(0.01, below=1.0)] = 0.5
    penalty: Annotated[float | int, AtLeast(0)] = 0.01
    scale: Scale = "log_odds"

    name: ClassVar = "context_cite"
    paper: ClassVar[str] = (
        "Cohen-Wang et al., ContextCite: attributing model generation to context, NeurIPS 2024, arXiv:2409.00729"
    )
    cost: ClassVar = "(samples + held_out) · F"
    scaled_by: ClassVar = ("samples", "held_out")
    adapted: ClassVar = (
        "one token is explained, not a response; tokens share their sentence's score, and are not tokenized again"
    )

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_extra("sklearn", f"method={self.name!r}")

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=self._count(len(self.sources(prediction))) + self.held_out)

    def values(self, prediction: Prediction, sources: Members) -> Values:
        count = self._count(len(sources))
        first = int(prompt_generator(self.seed, prediction.ids).integers(2**31))  # far from the next seed's
        masks = official_masks(first, count + self.held_out, len(sources), self.keep)
        values = coalitions.worths(sources, masks, self.coalitions(prediction, self.scale))
        linear = coalitions.lasso(masks[:count], values[:count], self.penalty)
        facts = {
            "intercept": linear.intercept,
            "fit": coalitions.explained(linear(masks[:count]), values[:count]),
            "held_out_fit": coalitions.explained(linear(masks[count:]), values[count:]),
        }
        return Values(linear.weights, facts)

    def _count(self, sources: int) -> int:
        if self.samples is not None:
            return self.samples
        return OFFICIAL if self.source == "sentence" else max(OFFICIAL, 4 * sources)


def official_masks(seed: int, count: int, sources: int, keep: float | int) -> Bool[np.ndarray, "sample source"]:
    """Draw ablations as the authors' code does, with a random generator per ablation, given the seed of the first."""
    seeds = range(seed, seed + count)
    draws = [np.random.RandomState(each).choice([False, True], size=sources, p=[1 - keep, keep]) for each in seeds]
    return np.array(draws)
