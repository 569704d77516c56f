"""Downstream tasks on the tokens with the highest scores: a claim to verify, a look-up, a classifier to retrain."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.numerics import TOLERANCE, token_count
from heta_lens._util.python import extra
from heta_lens._util.text import sentences
from heta_lens.metrics.evidence import ranked
from heta_lens.metrics.nc_ns import without
from heta_lens.metrics.scores import Positions, finite_scores, normalised, positions_in, rows_of
from heta_lens.prediction.prediction import Prediction, prompt_generator

SENTENCE_END = re.compile(r"[.!?]")  # of a snippet with missing tokens: no white space need follow
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


def kept_share(scores: Float[Tensor, "pos"], candidates: Positions, share: float = 0.4) -> list[int]:
    """Return a ``share`` of the candidates with the highest scores, rounded up, in the order of the text."""
    order = ranked(scores, candidates)
    return sorted(order[: token_count(share, len(order), "up")])


def kept_mass(scores: Float[Tensor, "pos"], candidates: Positions, mass: float = 0.4) -> list[int]:
    """Return the fewest candidates with a share ``mass`` of the positive scores, in the order of the text."""
    order = ranked(scores, candidates)
    reached = normalised(finite_scores(scores)[order]).cumsum(0)
    return sorted(order[: 1 + int((reached < mass * (1 - TOLERANCE)).sum())])


def exact_match_change(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    context: Positions,
    choices: Sequence[int],
    share: float = 0.4,
    seed: int = 0,
) -> dict[str, float]:
    """Return the change in exact match, in points, of a claim verified on the best ``share`` of its context.

    For a claim -100, 0 or 100; more is better. ``random`` is the same for as many random tokens. The verdict is the
    choice that the model finds most likely while the remaining context is 0.
    """
    if prediction.target not in choices:
        raise ValueError(f"the target, {prediction.target_words}, is none of the choices {list(choices)}")
    scores = finite_scores(scores, len(prediction))
    context = positions_in("context", context, len(scores))
    chance = torch.from_numpy(prompt_generator(seed, prediction.ids).random(len(scores)))
    kept = [context, kept_share(scores, context, share), kept_share(chance, context, share)]
    gone = rows_of([{*context} - {*positions} for positions in kept], len(prediction))
    verdicts = without(prediction, gone, lambda log_probs: log_probs[:, list(choices)]).argmax(-1).tolist()
    whole, best, random = (choices[verdict] == prediction.target for verdict in verdicts)
    return {"change": 100.0 * (best - whole), "random": 100.0 * (random - whole)}


def look_up(text: str, question: str, choices: Sequence[str]) -> str:
    """Return the choice in the sentence with most words of the question, of equal sentences the first."""
    wanted = {*words(question)}
    words_by_sentence = [{*words(text[start:stop])} for start, stop in sentences(text, SENTENCE_END)]
    matches = [
        (len(wanted & present), -place, choice)
        for place, present in enumerate(words_by_sentence)
        for choice in choices
        if {*words(choice)} <= present
    ]
    return max(matches)[2] if matches else ""


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


# --------------------------------------------------------------------------------------------------------- ROAR and KAR
# ROAR and KAR (Hooker 2019) replace a share of the tokens by an uninformative token, retrain a small classifier on the
# result, and evaluate the classifier on unseen texts treated the same way. So no text is out of distribution; but the
# absence of tokens may be informative, so random scores and texts without a token are measured too.


@dataclass(frozen=True)
class Retrained:
    """Accuracies in [0, 1], a row per seed: a good order has a low ``removed`` (ROAR) and a high ``kept`` (KAR).

    Accuracies ``by_chance`` are of random scores; ``whole`` and ``nothing``, of texts with every token and with none.
    """

    shares: tuple[float, ...]
    removed: Float[np.ndarray, "seed share"]
    kept: Float[np.ndarray, "seed share"]
    removed_by_chance: Float[np.ndarray, "seed share"]
    kept_by_chance: Float[np.ndarray, "seed share"]
    whole: Float[np.ndarray, "seed"]
    nothing: Float[np.ndarray, "seed"]


def retrained(
    texts: Sequence[Sequence[int]],
    labels: Sequence[int],
    scores: Sequence[Float[Tensor, "pos"]],
    *,
    shares: Sequence[float] = SHARES,
    seeds: int = 3,
) -> Retrained:
    """Train a logistic regression on half of the texts, and evaluate it on the rest, for every share and seed.

    - ``texts``: token ids; the classifier sees the counts of the tokens
    - ``scores``: scores of every text's tokens
    - ``seeds``: the number of seeds, which draw the halves
    """
    if not len(texts) == len(labels) == len(scores) or len(texts) < 4:
        raise ValueError(f"{len(texts)} texts, {len(labels)} labels and {len(scores)} scores: give as many, and four")
    orders = [ranked(finite_scores(given, len(text))) for given, text in zip(scores, texts, strict=True)]
    truth = np.array(labels)
    accuracies: dict[str, list[Any]] = {name: [] for name in Retrained.__dataclass_fields__ if name != "shares"}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        train = generator.permutation(len(texts)) < len(texts) // 2
        mixed = [generator.permutation(order).tolist() for order in orders]
        accuracy = partial(accuracy_without, texts, truth, train, seed)
        for name, ranking in (("", orders), ("_by_chance", mixed)):
            cuts = [[token_count(share, len(order), "nearest") for order in ranking] for share in shares]
            first = [[order[:cut] for order, cut in zip(ranking, row, strict=True)] for row in cuts]
            others = [[order[cut:] for order, cut in zip(ranking, row, strict=True)] for row in cuts]
            accuracies[f"removed{name}"].append([*map(accuracy, first)])
            accuracies[f"kept{name}"].append([*map(accuracy, others)])
        accuracies["whole"].append(accuracy([[]] * len(texts)))
        accuracies["nothing"].append(accuracy(orders))
    return Retrained(tuple(shares), **{name: np.array(rows) for name, rows in accuracies.items()})


def accuracy_without(
    texts: Sequence[Sequence[int]],
    truth: Int[np.ndarray, "text"],
    train: Bool[np.ndarray, "text"],
    seed: int,
    gone: Sequence[Sequence[int]],
) -> float:
    """Train on the ``train`` texts without the positions ``gone``, and return the accuracy on the other texts."""
    counts = np.zeros((len(texts), max(map(max, texts)) + 2), dtype=int)  # the last column counts the positions
    for row, text, positions in zip(counts, texts, gone, strict=True):
        np.add.at(row, [text[at] for at in {*range(len(text))} - {*positions}], 1)
        row[-1] = len(positions)
    classifier = extra("sklearn.linear_model", "retraining").LogisticRegression(max_iter=1000, random_state=seed)
    classifier.fit(counts[train], truth[train])
    return float((classifier.predict(counts[~train]) == truth[~train]).mean())
