"""Robustness: the change of scores under noise, and in a paraphrase."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import nan
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.diagnostics import rank_correlation
from heta_lens.model.hooks import EMBED, BatchHook
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.prediction import Prediction, prompt_generator

Explain: TypeAlias = Callable[[Prediction], Attribution]

AUXILIARIES = frozenset(["am", "is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "by"])
ENDINGS = ("ied", "ies", "ing", "ed", "es", "s", "e", "d")
FEWEST_PAIRS = 3  # of words with a meaningful order


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
        with prediction.hooked([(EMBED, moved)]) if noise else nullcontext():
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
