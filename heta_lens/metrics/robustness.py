"""How much scores change when what they explain hardly does."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import nan
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.lens import EMBED, BatchHook
from heta_lens.metrics.checks import finite_numbers, finite_scores
from heta_lens.options import check_at_least
from heta_lens.prediction import Prediction
from heta_lens.turns import one_at_a_time

Explain: TypeAlias = Callable[[Prediction], Attribution]

AUXILIARIES = frozenset(["am", "is", "are", "was", "were", "be", "been", "being", "has", "have", "had", "by"])
ENDINGS = ("ied", "ies", "ing", "ed", "es", "s", "e", "d")
PAIRS = 3  # the fewest that tell of an order


@one_at_a_time("prediction")
def under_noise(
    prediction: Prediction, methods: Sequence[Explain], *, noise: float | int = 0.01, seed: int = 0
) -> list[Attribution]:
    """A run of each method, every time with other Gaussian noise on all embeddings, of this many times their own size.

    Give one method as often as there are to be runs, and only the noise varies; copies of it with seeds of their own,
    and its own chance does too (alone, where ``noise`` is 0).
    """
    check_at_least("noise", noise, 0)
    check_at_least("seed", seed, 0, whole=True)
    size = noise * float(prediction.embeddings.square().mean().sqrt())
    found = []
    for run, explain in enumerate(methods):
        drawn = np.random.default_rng([seed, run, *prediction.ids.tolist()]).standard_normal(
            prediction.embeddings.shape
        )
        moved = BatchHook(shifted, size * torch.from_numpy(drawn))
        with prediction.lens.hooked([(EMBED, moved)]) if noise else nullcontext():
            found.append(explain(again(prediction)))
    return found


def shifted(by: Float[Tensor, "pos d"], live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
    """With something added to the first positions, as many as there are."""
    return torch.cat([live[:, : len(by)] + by[: live.shape[1]].to(live), live[:, len(by) :]], 1)


def again(prediction: Prediction) -> Prediction:
    """The same question to the model as it is now: with other hooks, or other weights."""
    ids = prediction.ids[None]
    return Prediction.from_cache(prediction.lens.cache(ids), prediction.target, tokens=ids)


def sensitivity(runs: Float[Tensor, "run pos"]) -> float:
    """The mean over tokens of their scores' standard deviation over runs; 0 and above, less is better."""
    runs = finite_numbers(runs, "runs")
    if runs.ndim != 2 or not runs.numel():
        raise ValueError(f"runs has the shape {tuple(runs.shape)}, and must hold a row of scores per run: (run, pos)")
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} run tells nothing of how scores vary: give two at least")
    return float(runs.double().std(0).mean())


# ----------------------------------------------------------------------------------------------------- told otherwise
class Agreement(NamedTuple):
    """``correlation`` is NaN where fewer than three words have a partner, or one side tells none of them apart."""

    correlation: float
    pairs: int
    coverage: float


def told_alike(one: Attribution, other: Attribution, reduce: Literal["sum", "max"] = "sum") -> Agreement:
    """Spearman's correlation of the words that two tellings share, from -1 to 1; more is better.

    Words are matched by their stems, each once, from left to right; auxiliaries and "by" have no partner. ``coverage``
    is the share of the first telling's other words that found one.
    """
    for name, some in (("one", one), ("other", other)):
        finite_scores(some.scores, name=f"{name}.scores")
    first, second = ([word for word in some.by_word(reduce) if stem(word.text)] for some in (one, other))
    pairs = matched([word.text for word in first], [word.text for word in second])
    scores = np.array([[first[i].score, second[j].score] for i, j in pairs]).reshape(-1, 2)
    level = not len(scores) or bool((np.ptp(scores, axis=0) == 0).any())
    correlation = nan if len(pairs) < PAIRS or level else float(spearmanr(*scores.T)[0])  # type: ignore[arg-type]
    return Agreement(correlation, len(pairs), len(pairs) / max(1, len(first)))


def matched(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Which word of one text is which of the other."""
    left: dict[str, list[int]] = {}
    for place, word in enumerate(second):
        left.setdefault(stem(word), []).append(place)
    return [(place, left[stem(word)].pop(0)) for place, word in enumerate(first) if left.get(stem(word))]


def stem(word: str) -> str:
    """What a word shares with its other forms, roughly; nothing, of a word that only holds a sentence together."""
    bare = "".join(letter for letter in word.lower() if letter.isalnum())
    if bare in AUXILIARIES:
        return ""
    ending = next((end for end in ENDINGS if bare.endswith(end) and len(bare) - len(end) >= 3), "")
    return bare.removesuffix(ending)
