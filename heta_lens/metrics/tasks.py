"""Downstream tasks on only the tokens with the highest scores: verifying a claim, or looking something up."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_at_least, check_count
from heta_lens._util.python import extra
from heta_lens._util.text import sentences
from heta_lens.metrics.evidence import ranked, reaching
from heta_lens.metrics.nc_ns import without
from heta_lens.metrics.scores import Positions, finite_scores, normalised, positions_in, rows_of
from heta_lens.prediction.prediction import Prediction, prompt_generator

MARK = re.compile(r"[.!?]")  # of a snippet: where tokens are missing, no white space may follow
Tool: TypeAlias = Callable[[str, str, Sequence[str]], str]  # of the kept text, the question and the choices


def kept_share(scores: Float[Tensor, "pos"], candidates: Positions, share: float = 0.4) -> list[int]:
    """The ``share`` of the candidates with the highest scores, rounded up, in the order of the text."""
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1")
    order = ranked(scores, candidates)
    return sorted(order[: token_count(share, len(order), "up")])


def kept_mass(scores: Float[Tensor, "pos"], candidates: Positions, mass: float = 0.4) -> list[int]:
    """The fewest candidates whose scores above 0 make up this share of all of theirs, in the order of the text."""
    scores = finite_scores(scores)
    order = ranked(scores, candidates)
    return sorted(order[: reaching(normalised(scores[order]).values.tolist(), mass)])


def verdicts(
    prediction: Prediction, choices: Sequence[int], kept: Sequence[Positions], context: Positions
) -> list[int]:
    """The choice the model finds most likely when only these ``context`` tokens are kept and the others are 0."""
    gone = rows_of([{*context} - {*positions} for positions in kept], len(prediction))
    log_probs = without(prediction, gone, lambda log_probs: log_probs[:, list(choices)])
    return [choices[at] for at in log_probs.argmax(-1).tolist()]


def exact_match_change(
    prediction: Prediction,
    scores: Float[Tensor, "pos"],
    *,
    context: Positions,
    choices: Sequence[int],
    share: float = 0.4,
    seed: int = 0,
) -> dict[str, float]:
    """The change in exact match, in points, of verifying a claim on the best ``share`` of its context, not all.

    For one claim -100, 0 or 100; more is better. ``random`` is the same for as many random tokens.
    """
    if not isinstance(prediction.target, int):
        raise ValueError(f"exact match needs one token as the target, not {prediction.target_words}")
    if prediction.target not in choices:
        raise ValueError(f"the target {prediction.target} is none of the choices {list(choices)}")
    check_at_least("seed", seed, 0, whole=True)
    scores = finite_scores(scores, len(prediction))
    context = positions_in("context", context, len(scores))
    chance = torch.from_numpy(prompt_generator(seed, prediction.ids).random(len(scores)))
    kept = [context, kept_share(scores, context, share), kept_share(chance, context, share)]
    whole, best, random = (verdict == prediction.target for verdict in verdicts(prediction, choices, kept, context))
    return {"change": 100.0 * (best - whole), "random": 100.0 * (random - whole)}


def hit_change(tool: Tool, whole: str, snippet: str, question: str, answer: str, choices: Sequence[str]) -> float:
    """The change in Hit@1, in points, when a tool reads the snippet instead of the whole; more is better."""
    best, all_of_it = (tool(text, question, choices) == answer for text in (snippet, whole))
    return 100.0 * (best - all_of_it)


def look_up(text: str, question: str, choices: Sequence[str]) -> str:
    """A simple tool: the choice in the sentence that shares most words with the question; of equal ones the first."""
    wanted = {*words(question)}
    words_by_sentence = [{*words(text[start:stop])} for start, stop in sentences(text, MARK)]
    matches = [
        (len(wanted & own), -place, choice)
        for place, own in enumerate(words_by_sentence)
        for choice in choices
        if {*words(choice)} <= own
    ]
    return max(matches)[2] if matches else ""


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


# ------------------------------------------------------------------------------------------------------------ roar kar
# ROAR and KAR (Hooker 2019): what a model can still learn when the tokens that scored highest are gone, or all others.
#
# A small classifier is retrained on texts in which a share of the tokens is replaced by an uninformative one, and
# evaluated on other texts treated the same way. So it meets nothing out of distribution; but it may learn from which
# tokens are missing, so random scores and texts without any token are measured too.


Make: TypeAlias = Callable[[int], Any]  # of a seed: what has fit(counts, labels) and predict(counts)

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Retrained:
    """Accuracies in [0, 1], a row for each seed; of ``removed`` less is better (ROAR), of ``kept`` more (KAR).

    Those ``by_chance`` are of random scores; ``whole`` and ``nothing``, of texts with all tokens and with none.
    """

    shares: tuple[float, ...]
    removed: Float[np.ndarray, "seed share"]
    kept: Float[np.ndarray, "seed share"]
    removed_by_chance: Float[np.ndarray, "seed share"]
    kept_by_chance: Float[np.ndarray, "seed share"]
    whole: Float[np.ndarray, "seed"]
    nothing: Float[np.ndarray, "seed"]


def logistic_regression(seed: int) -> Any:
    """The classifier that is trained, unless another is given."""
    return extra("sklearn.linear_model", "retraining").LogisticRegression(max_iter=1000, random_state=seed)


def retrained(
    texts: Sequence[Sequence[int]],
    labels: Sequence[int],
    scores: Sequence[Float[Tensor, "pos"]],
    *,
    shares: Sequence[float] = SHARES,
    candidates: Sequence[Positions] | None = None,
    seeds: int = 3,
    make: Make = lambda seed: extra("sklearn.linear_model", "retraining").LogisticRegression(
        max_iter=1000, random_state=seed
    ),
) -> Retrained:
    """Train on half of the texts, and evaluate on the other half, for every share and seed.

    - ``texts``: token ids; the classifier sees how often each occurs
    - ``scores``: of each text's tokens; ``candidates`` are those that may be removed (all)
    - ``make``: the classifier; by default a logistic regression
    - ``seeds``: how many seeds, each with its own halves
    """
    check_count("seeds", seeds)
    if not len(texts) == len(labels) == len(scores) or len(texts) < 4:
        raise ValueError(f"{len(texts)} texts, {len(labels)} labels and {len(scores)} scores: give as many, and four")
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"shares={tuple(shares)} must be between 0 and 1")
    positions = [None] * len(texts) if candidates is None else candidates
    if len(positions) != len(texts):
        raise ValueError(f"there are candidates for {len(positions)} of {len(texts)} texts: give them for each")
    known = [
        finite_scores(own, len(text), f"scores[{at}]") for at, (own, text) in enumerate(zip(scores, texts, strict=True))
    ]
    orders = [ranked(own, each) for own, each in zip(known, positions, strict=True)]
    accuracies: dict[str, list[Any]] = {name: [] for name in Retrained.__dataclass_fields__ if name != "shares"}
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        train = generator.permutation(len(texts)) < len(texts) // 2
        mixed = [generator.permutation(order).tolist() for order in orders]

        def accuracy(ways: Sequence[Sequence[int]], train: Any = train, seed: int = seed) -> float:
            return _accuracy(retrained_without(texts, ways), np.array(labels), train, make(seed))

        for name, ranking in (("", orders), ("_by_chance", mixed)):
            for kind, tokens in (("removed", _first), ("kept", _others)):
                curve = [accuracy([tokens(order, share) for order in ranking]) for share in shares]
                accuracies[f"{kind}{name}"].append(curve)
        accuracies["whole"].append(accuracy([[]] * len(texts)))
        accuracies["nothing"].append(accuracy(orders))
    return Retrained(tuple(shares), **{name: np.array(rows) for name, rows in accuracies.items()})


def _first(order: Sequence[int], share: float) -> Sequence[int]:
    return order[: token_count(share, len(order), "nearest")]


def _others(order: Sequence[int], share: float) -> Sequence[int]:
    return order[token_count(share, len(order), "nearest") :]


def retrained_without(texts: Sequence[Sequence[int]], gone: Sequence[Sequence[int]]) -> Int[np.ndarray, "text word"]:
    """How often each token occurs in each text outside these positions; the last column counts these positions."""
    counts = np.zeros((len(texts), max(max(text) for text in texts) + 2), dtype=int)
    for row, text, places in zip(counts, texts, gone, strict=True):
        left = set(range(len(text))) - {*places}
        np.add.at(row, [text[at] for at in left], 1)
        row[-1] = len(places)
    return counts


def _accuracy(counts: Int[np.ndarray, "text word"], labels: np.ndarray, train: np.ndarray, classifier: Any) -> float:
    if len(set(labels[train])) < 2:
        raise ValueError("all texts to train on have one label: give more of them")
    classifier.fit(counts[train], labels[train])
    return float((classifier.predict(counts[~train]) == labels[~train]).mean())
