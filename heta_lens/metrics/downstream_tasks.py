"""Downstream tasks on only the tokens with the highest scores: verifying a claim, or looking something up."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least
from heta_lens._util.sentence_spans import sentences
from heta_lens._util.token_share import token_count
from heta_lens.metrics.candidate_tokens import Positions, rows_of
from heta_lens.metrics.hard_nc_ns import without
from heta_lens.metrics.score_checks import finite_scores, positions_in
from heta_lens.metrics.score_normalisation import normalised
from heta_lens.metrics.score_ranking import ranked, reaching
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
