"""What a reader can do with only the tokens that scores point at: check a claim, or look something up."""

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.metrics.candidates import Positions, rows_of
from heta_lens.metrics.checks import finite_scores, positions_in
from heta_lens.metrics.hard import without
from heta_lens.metrics.normalised import normalised
from heta_lens.metrics.ranking import ranked, reaching
from heta_lens.options import check_at_least
from heta_lens.prediction import Prediction

Tool: TypeAlias = Callable[[str, str, Sequence[str]], str]  # of what was kept, the question, and the choices


def kept_share(scores: Float[Tensor, "pos"], candidates: Positions, share: float = 0.4) -> list[int]:
    """The ``share`` of the candidates with the highest scores, rounded up, in the order of the text."""
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1")
    order = ranked(scores, candidates)
    return sorted(order[: ceil(share * len(order) - 1e-9)])


def kept_mass(scores: Float[Tensor, "pos"], candidates: Positions, mass: float = 0.4) -> list[int]:
    """The fewest candidates whose scores above 0 make up this share of all of theirs, in the order of the text."""
    scores = finite_scores(scores)
    order = ranked(scores, candidates)
    return sorted(order[: reaching(normalised(scores[order]).values.tolist(), mass)])


def verdicts(
    prediction: Prediction, choices: Sequence[int], kept: Sequence[Positions], context: Positions
) -> list[int]:
    """Which choice the model finds likeliest when of the ``context`` only these tokens are left, and the rest is 0."""
    gone = rows_of([{*context} - {*some} for some in kept], len(prediction))
    log_probs = without(prediction, gone, lambda found: found[:, list(choices)])
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
    """How much more often, in points, a claim is judged right by the best ``share`` of its context than by all of it.

    Of one claim -100, 0 or 100; more is better. ``random`` is the same of as many tokens by chance.
    """
    if prediction.target not in choices:
        raise ValueError(f"the target {prediction.target} is none of the choices {list(choices)}")
    check_at_least("seed", seed, 0, whole=True)
    scores = finite_scores(scores, len(prediction))
    context = positions_in("context", context, len(scores))
    chance = torch.from_numpy(np.random.default_rng([seed, *prediction.ids.tolist()]).random(len(scores)))
    kept = [context, kept_share(scores, context, share), kept_share(chance, context, share)]
    whole, best, random = (verdict == prediction.target for verdict in verdicts(prediction, choices, kept, context))
    return {"change": 100.0 * (best - whole), "random": 100.0 * (random - whole)}


def hit_change(tool: Tool, whole: str, snippet: str, question: str, answer: str, choices: Sequence[str]) -> float:
    """How much more often, in points, a tool finds the answer in a snippet than in the whole; more is better."""
    best, all_of_it = (tool(text, question, choices) == answer for text in (snippet, whole))
    return 100.0 * (best - all_of_it)


def look_up(text: str, question: str, choices: Sequence[str]) -> str:
    """A little tool: the choice that a sentence names with most words of the question; of equal ones the first."""
    asked = {*words(question)}
    sentences = [words(part) for part in re.split(r"[.!?]", text)]
    found = [
        (len(asked & {*sentence}), -place, choice)
        for place, sentence in enumerate(sentences)
        for choice in choices
        if {*words(choice)} <= {*sentence}
    ]
    return max(found)[2] if found else ""


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
