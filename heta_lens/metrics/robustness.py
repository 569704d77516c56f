"""Robustness: how much scores change when the prediction hardly does."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import nan
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens.attribution import Attribution
from heta_lens.metrics.score_checks import finite_numbers, finite_scores
from heta_lens.model.hook_sites import EMBED
from heta_lens.model.hooking import BatchHook
from heta_lens.model.locking import one_at_a_time
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
