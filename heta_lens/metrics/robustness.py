"""Robustness: the change of scores under noise, in a paraphrase, with shuffled weights, for sampled tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product, starmap
from math import nan
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.diagnostics import rank_correlation
from heta_lens.metrics.scores import Positions, candidate_positions, finite_scores
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, BatchHook
from heta_lens.model.lock import changing, one_at_a_time
from heta_lens.model.weights import is_elsewhere
from heta_lens.prediction.generation import drawn_token
from heta_lens.prediction.prediction import Prediction, prompt_generator

Explain: TypeAlias = Callable[[Prediction], Attribution]

AUXILIARIES = frozenset(["am", "is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "by"])
ENDINGS = ("ied", "ies", "ing", "ed", "es", "s", "e", "d")
FEWEST_PAIRS = 3  # of words with a meaningful order
UNREADABLE = "weights that are quantised or offloaded cannot be shuffled"


@one_at_a_time("prediction")
def under_noise(
    prediction: Prediction, methods: Sequence[Explain], *, noise: float | int = 0.01, seed: int = 0
) -> list[Attribution]:
    """Run every method with fresh Gaussian noise on the embeddings, ``noise`` times as large as the embeddings.

    To vary only the noise, repeat a method; to vary the method's seed too (alone, with ``noise=0``), give copies of
    the method with different seeds.
    """
    size = noise * float(prediction.embeddings.square().mean().sqrt())
    attributions = []
    for run, explain in enumerate(methods):
        drawn = prompt_generator(seed, prediction.ids, run).standard_normal(prediction.embeddings.shape)
        moved = BatchHook(_shifted, size * torch.from_numpy(drawn))
        with prediction.adapter.hooked([(EMBED, moved)]) if noise else nullcontext():
            attributions.append(explain(again(prediction)))
    return attributions


def _shifted(noise: Float[Tensor, "pos d"], live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
    return torch.cat([live[:, : len(noise)] + noise[: live.shape[1]].to(live), live[:, len(noise) :]], 1)


def again(prediction: Prediction) -> Prediction:
    """Repeat a prediction with the model's present hooks and weights."""
    ids = prediction.ids[None]
    return Prediction.from_cache(prediction.adapter.cache(ids), prediction.target, tokens=ids)


def sensitivity(runs: Float[Tensor, "run pos"]) -> float:
    """Mean over tokens of the standard deviation of scores over runs, at least 0; less is better."""
    return float(runs.double().std(0).mean())


def paraphrase_consistency(first: Attribution, second: Attribution) -> float:
    """Spearman's correlation over the shared words of a text and its paraphrase, from -1 to 1; more is better.

    Words match by their stems, from left to right, at most once; auxiliaries and "by" do not match. NaN for fewer than
    three matching words or constant scores.
    """
    ours, theirs = ([word for word in of.by_word() if stem(word.text)] for of in (first, second))
    pairs = matched([word.text for word in ours], [word.text for word in theirs])
    if len(pairs) < FEWEST_PAIRS:
        return nan
    scores = torch.tensor([[ours[i].score, theirs[j].score] for i, j in pairs], dtype=torch.float64)
    return rank_correlation(scores[:, 0], scores[:, 1])


def matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Pair the places of words with equal stems in two texts."""
    unmatched: dict[str, list[int]] = {}
    for place, word in enumerate(second):
        unmatched.setdefault(stem(word), []).append(place)
    return [(place, unmatched[stem(word)].pop(0)) for place, word in enumerate(first) if unmatched.get(stem(word))]


def stem(word: str) -> str:
    """Strip a common ending from a word; empty for auxiliaries and "by"."""
    bare = "".join(letter for letter in word.lower() if letter.isalnum())
    if bare in AUXILIARIES:
        return ""
    ending = next((end for end in ENDINGS if bare.endswith(end) and len(bare) - len(end) >= 3), "")
    return bare.removesuffix(ending)


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
    """Compare the sizes of scores before and after the last layers' weights are shuffled (Adebayo 2018).

    Spearman's correlation by the number of shuffled layers (default: every number), from the last layer down; near 0
    is right, and 1 shows that the method is insensitive to the weights. NaN for constant scores.
    """
    depths = range(1, prediction.adapter.layers + 1) if layers is None else layers
    scores, positions = finite_scores(scores, len(prediction)), candidate_positions(candidates, len(prediction))
    correlations: dict[int, float] = {}
    for depth in depths:
        with shuffled(prediction.adapter, depth, seed):
            other = explain(again(prediction)).scores
        correlations[depth] = rank_correlation(scores.abs()[positions], other.abs()[positions])
    return correlations


@contextmanager
def shuffled(adapter: ModelAdapter, depth: int, seed: int = 0) -> Iterator[None]:
    """Shuffle the entries of every weight of the last ``depth`` layers until the block ends."""
    if not 1 <= depth <= adapter.layers:
        raise ValueError(f"{depth} layers cannot be shuffled: the model has {adapter.layers}")
    if not can_be_shuffled(adapter):
        raise ValueError(f"{UNREADABLE}: load the model in 16 or 32 bits, in memory")
    last = torch.nn.ModuleList([*adapter.model.blocks][adapter.layers - depth :])
    before = [(weight, weight.detach().clone()) for weight in last.parameters()]  # a shared weight once
    generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def put_back() -> None:
        for weight, old in before:
            weight.copy_(old)

    with changing(adapter.model, put_back):
        with torch.no_grad():
            for weight, old in before:
                order = torch.randperm(old.numel(), generator=generator).to(old.device)
                weight.copy_(old.flatten()[order].view_as(old))
        yield


def can_be_shuffled(adapter: ModelAdapter) -> bool:
    """Return True if every weight is in memory and not quantised."""
    return not adapter.quantised and not any(map(is_elsewhere, adapter.model.parameters()))


@dataclass(frozen=True)
class Setting:
    """A setting of the sampler: another target token, but the same explanation of a given token.

    A temperature of 0 takes the most likely token, a ``top_k`` of 0 draws from the whole vocabulary. ``repetition``
    multiplies the log-probabilities of the context's tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition: float = 1.0


GRID = tuple(starmap(Setting, product((0.2, 0.5, 0.9), (0.8, 0.9, 0.95), (20, 50, 100), (1.0, 1.2))))
"""The paper's 54 settings, which it runs with 3 seeds."""
FEW = (Setting(), Setting(1.0, 0.9), Setting(0.8))
"""The settings of the paper's appendix: greedy, a nucleus, a temperature."""


def first_token(prediction: Prediction, setting: Setting, seed: int = 0) -> int:
    """Draw the model's next token under a setting of the sampler."""
    log_probs = prediction.log_probs.cpu().double().clone()
    if setting.repetition != 1.0:
        log_probs[prediction.ids.cpu().unique()] *= setting.repetition  # a log-probability is below 0, and so falls
    if setting.top_k:
        log_probs[log_probs.argsort(descending=True, stable=True)[setting.top_k :]] = -torch.inf
    draw = torch.from_numpy(prompt_generator(seed, prediction.ids).random(1))
    return int(drawn_token(log_probs[None], draw, setting.temperature, setting.top_p)[0])


def relative_change(figures: Sequence[float], errors: Sequence[float], *, reference: float | None = None) -> float:
    """Return the distance of the two values furthest apart, in percent of the mean, at least 0; less is better.

    With a ``reference``, return the mean distance from it, in percent of it. NaN if the divisor is within two standard
    errors of 0, because a percentage of 0 is meaningless.
    """
    values = np.array(figures, dtype=float)
    base = float(values.mean()) if reference is None else reference
    if not np.isfinite([*values, *errors]).all() or abs(base) < max(1e-6, 2 * float(np.mean(errors))):
        return nan
    if reference is not None:
        return 100 * float(np.abs(values - base).mean()) / abs(base)
    return 100 * float(np.ptp(values)) / abs(base)
