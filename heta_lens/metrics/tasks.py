"""Downstream tasks on the tokens with the highest scores: a claim to verify, and a look-up."""

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import TOLERANCE, token_count
from heta_lens._util.text import sentences
from heta_lens.metrics.evidence import ranked
from heta_lens.metrics.removal import without
from heta_lens.metrics.scores import Positions, finite_scores, normalised, positions_in, rows_of
from heta_lens.prediction.prediction import Prediction, prompt_generator

SENTENCE_END = re.compile(r"[.!?]")  # of a snippet with missing tokens: no white space need follow


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
    verdicts = without(prediction, gone, lambda logits: logits[:, list(choices)]).argmax(-1).tolist()
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
