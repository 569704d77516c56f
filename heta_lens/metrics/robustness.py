"""Robustness: how much scores change when the prediction hardly does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import nan
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from heta_lens._util.options import check_at_least, check_choice
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import rank_correlation
from heta_lens.metrics.scores import Positions, finite_numbers, finite_scores, places
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, BatchHook
from heta_lens.model.lock import changing, one_at_a_time
from heta_lens.model.weights import is_elsewhere
from heta_lens.prediction.generation import drawn_token
from heta_lens.prediction.prediction import Prediction, prompt_generator

Explain: TypeAlias = Callable[[Prediction], Attribution]

AUXILIARIES = frozenset(["am", "is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "by"])
ENDINGS = ("ied", "ies", "ing", "ed", "es", "s", "e", "d")
PAIRS = 3  # the fewest words whose order is meaningful


@one_at_a_time("prediction")
def under_noise(
    prediction: Prediction, methods: Sequence[Explain], *, noise: float | int = 0.01, seed: int = 0
) -> list[Attribution]:
    """A run of each method with its own Gaussian noise on all embeddings, ``noise`` times as large as these.

    To vary only the noise, repeat one method; to vary the method's seed too (alone, with ``noise=0``), give copies of
    it with different seeds.
    """
    check_at_least("noise", noise, 0)
    check_at_least("seed", seed, 0, whole=True)
    size = noise * float(prediction.embeddings.square().mean().sqrt())
    attributions = []
    for run, explain in enumerate(methods):
        drawn = prompt_generator(seed, prediction.ids, run).standard_normal(prediction.embeddings.shape)
        moved = BatchHook(shifted, size * torch.from_numpy(drawn))
        with prediction.adapter.hooked([(EMBED, moved)]) if noise else nullcontext():
            attributions.append(explain(again(prediction)))
    return attributions


def shifted(by: Float[Tensor, "pos d"], live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
    """The live states with noise added to the first positions."""
    return torch.cat([live[:, : len(by)] + by[: live.shape[1]].to(live), live[:, len(by) :]], 1)


def again(prediction: Prediction) -> Prediction:
    """The same prediction by the model as it is now: with other hooks, or other weights."""
    ids = prediction.ids[None]
    return Prediction.from_cache(prediction.adapter.cache(ids), prediction.target, tokens=ids)


def sensitivity(runs: Float[Tensor, "run pos"]) -> float:
    """The mean over tokens of their scores' standard deviation over runs; 0 and above, less is better."""
    runs = finite_numbers(runs, "runs")
    if runs.ndim != 2 or not runs.numel():
        raise ValueError(f"runs has the shape {tuple(runs.shape)}, and must hold a row of scores per run: (run, pos)")
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} run does not show how scores vary: give at least two")
    return float(runs.double().std(0).mean())


# -------------------------------------------------------------------------------------------- paraphrase consistency
class Agreement(NamedTuple):
    """``correlation`` is NaN where fewer than three words match, or the scores of one text are all equal."""

    correlation: float
    pairs: int
    coverage: float


def paraphrase_consistency(first: Attribution, second: Attribution, reduce: Literal["sum", "max"] = "sum") -> Agreement:
    """Spearman's correlation over the words that a text and its paraphrase share, from -1 to 1; more is better.

    Words are matched by their stems, each once, from left to right; auxiliaries and "by" are not matched. ``coverage``
    is the share of the first text's other words that have a match.
    """
    for name, attribution in (("first", first), ("second", second)):
        finite_scores(attribution.scores, name=f"{name}.scores")
    ours, theirs = ([word for word in each.by_word(reduce) if stem(word.text)] for each in (first, second))
    pairs = matched([word.text for word in ours], [word.text for word in theirs])
    scores = np.array([[ours[i].score, theirs[j].score] for i, j in pairs]).reshape(-1, 2)
    level = not len(scores) or bool((np.ptp(scores, axis=0) == 0).any())
    correlation = nan if len(pairs) < PAIRS or level else float(spearmanr(*scores.T)[0])  # type: ignore[arg-type]
    return Agreement(correlation, len(pairs), len(pairs) / max(1, len(ours)))


def matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of places of the same word in two texts."""
    left: dict[str, list[int]] = {}
    for place, word in enumerate(second):
        left.setdefault(stem(word), []).append(place)
    return [(place, left[stem(word)].pop(0)) for place, word in enumerate(first) if left.get(stem(word))]


def stem(word: str) -> str:
    """What a word roughly shares with its other forms; empty for auxiliaries and "by"."""
    bare = "".join(letter for letter in word.lower() if letter.isalnum())
    if bare in AUXILIARIES:
        return ""
    ending = next((end for end in ENDINGS if bare.endswith(end) and len(bare) - len(end) >= 3), "")
    return bare.removesuffix(ending)


# ------------------------------------------------------------------------------------------------ weight randomisation
# Weight randomisation (Adebayo 2018): shuffled weights must change the scores of a method that explains them.


UNREADABLE = "weights that are quantised or offloaded cannot be shuffled"


@one_at_a_time("prediction")
def cascade(
    prediction: Prediction,
    explain: Explain,
    scores: Tensor,
    *,
    layers: list[int] | None = None,
    seed: int = 0,
    candidates: Positions | None = None,
) -> dict[int, float]:
    """Spearman's correlation of the sizes of scores before and after the last layers' weights are shuffled.

    By the number of layers, from the last one down (every number of them, if none are given); near 0 is right, and 1
    says that the method is insensitive to those layers. NaN where the scores before or after are all equal.
    """
    depths = [*range(1, prediction.adapter.layers + 1)] if layers is None else layers
    check_at_least("seed", seed, 0, whole=True)
    scores, positions = finite_scores(scores, len(prediction)), places(candidates, len(prediction))
    correlations: dict[int, float] = {}
    for depth in depths:
        with shuffled(prediction.adapter, depth, seed):
            other = explain(again(prediction)).scores
        correlations[depth] = rank_correlation(scores.abs()[positions], other.abs()[positions])
    return correlations


@contextmanager
def shuffled(adapter: ModelAdapter, depth: int, seed: int = 0) -> Iterator[None]:
    """Shuffle the entries of each weight of the last layers until the block ends."""
    if not 1 <= depth <= adapter.layers:
        raise ValueError(f"{depth} layers cannot be shuffled: the model has {adapter.layers}")
    if not can_be_shuffled(adapter):
        raise ValueError(f"{UNREADABLE}: load the model in 16 or 32 bits, in memory")
    weights = [weight for layer in list(adapter.blocks)[adapter.layers - depth :] for weight in layer.parameters()]
    before: list[tuple[Any, Tensor]] = [(weight, weight.detach().clone()) for weight in unique(weights)]
    generator = torch.Generator().manual_seed(seed)
    with changing(adapter.model, partial(_put_back, before)):
        with torch.no_grad():
            for weight, old in before:
                order = torch.randperm(old.numel(), generator=generator).to(old.device)
                weight.copy_(old.flatten()[order].view_as(old))
        yield


@torch.no_grad()
def _put_back(before: Sequence[tuple[Any, Tensor]]) -> None:
    for weight, old in before:
        weight.copy_(old)


def can_be_shuffled(adapter: ModelAdapter) -> bool:
    """Whether all weights are in memory, each entry as the number that it stands for."""
    return not adapter.quantised and not any(map(is_elsewhere, adapter.model.parameters()))


def unique(weights: list[Any]) -> list[Any]:
    return list({id(weight): weight for weight in weights}.values())


# --------------------------------------------------------------------------------------------------- decoding settings
# Decoding: which token a setting of the sampler chooses, and how much a metric depends on that.
#
# A setting does not change how a given token is explained, only which token is the target.


@dataclass(frozen=True)
class Setting:
    """A setting of the sampler. A temperature of 0 takes the most likely token, a ``top_k`` of 0 draws from all.

    ``repetition`` multiplies the log-probabilities of tokens that the context has.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p), ("repetition", self.repetition)):
            check_at_least(name, value, 0)
        check_at_least("top_k", self.top_k, 0, whole=True)


GREEDY = Setting()
GRID = tuple(
    Setting(temperature, top_p, top_k, repetition)
    for temperature, top_p, top_k, repetition in product((0.2, 0.5, 0.9), (0.8, 0.9, 0.95), (20, 50, 100), (1.0, 1.2))
)
"""The paper's 54 settings, each of which it runs with 3 seeds."""
FEW = (GREEDY, Setting(1.0, 0.9), Setting(0.8))
"""Those of the paper's appendix: greedy, a nucleus, a temperature."""


def first_token(prediction: Prediction, setting: Setting, seed: int = 0) -> int:
    """The token that the model continues with under this setting."""
    check_at_least("seed", seed, 0, whole=True)
    log_probs = shaped(prediction.log_probs.cpu().double(), setting, prediction.ids.cpu().tolist())
    draw = prompt_generator(seed, prediction.ids).random(1)
    chosen = drawn_token(log_probs[None], torch.from_numpy(draw), setting.temperature, setting.top_p)
    return int(chosen[0])


def shaped(log_probs: Float[Tensor, "vocab"], setting: Setting, context: Sequence[int]) -> Float[Tensor, "vocab"]:
    """The log-probabilities before the temperature: context tokens less likely, those beyond ``top_k`` excluded."""
    adjusted = log_probs.clone()
    if setting.repetition != 1.0:
        spoken = torch.tensor(sorted({*context}))
        adjusted[spoken] *= setting.repetition  # a log-probability is below 0, and so falls
    if setting.top_k:
        adjusted[adjusted.argsort(descending=True, stable=True)[setting.top_k :]] = -torch.inf
    return adjusted


def relative_change(
    figures: Sequence[float],
    errors: Sequence[float],
    *,
    reduce: Literal["max", "mean"] = "max",
    reference: float | None = None,
) -> float:
    """How far apart the values of settings are, in percent of their mean; 0 and above, less is better.

    ``max`` is of the two that are furthest apart, ``mean`` over all settings of their distance from the mean; with a
    ``reference``, from that, in percent of it. NaN where the mean is within two of its standard errors of 0, because a
    percentage of it would be meaningless.
    """
    check_choice("reduce", reduce, ("max", "mean"))
    if len(figures) != len(errors) or len(figures) < 2:
        raise ValueError(f"{len(figures)} figures with {len(errors)} standard errors: give as many, and two at least")
    for place, error in enumerate(errors):
        check_at_least(f"errors[{place}]", float(error), 0)
    values = np.array(figures, dtype=float)
    if np.isinf(values).any():
        raise ValueError(f"figures[{int(np.isinf(values).argmax())}] is {values[np.isinf(values)][0]}")
    base = float(values.mean()) if reference is None else reference
    if np.isnan(values).any() or abs(base) < max(1e-6, 2 * float(np.mean(errors))):
        return nan
    if reduce == "mean" or reference is not None:
        gaps = np.abs(values - base)
        return 100 * float(gaps.max() if reduce == "max" else gaps.mean()) / abs(base)
    return 100 * float(np.ptp(values)) / abs(base)
