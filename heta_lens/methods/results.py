"""What a method returns, `Scores`, and how scores become an `Attribution`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map_only

from heta_lens._util.files import brief
from heta_lens._util.python import versions
from heta_lens._util.target_kinds import Activation, Side, members, sides
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import joint_logit

CANDIDATES = 5  # next tokens that an attribution keeps


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the context's tokens, and ``diagnostics``: further facts to keep with the scores.

    ``parts`` are factors of the scores, and ``interactions`` scores of pairs of tokens, for methods that have them.
    """

    scores: Float[Tensor, "pos"]
    diagnostics: Mapping[str, Any] = field(default_factory=Diagnostics)
    parts: Mapping[str, Float[Tensor, "pos"]] = field(default_factory=dict)
    interactions: Float[Tensor, "pos pos"] | None = None

    @property
    def facts(self) -> Diagnostics:
        """The diagnostics, with types."""
        return self.diagnostics if isinstance(self.diagnostics, Diagnostics) else Diagnostics.of(self.diagnostics)


def checked_scores(method: str, scores: Any, prediction: Prediction) -> Float[Tensor, "pos"]:
    """Return scores as a tensor; refuse anything but one finite number per token."""
    try:
        if scores.is_complex() if isinstance(scores, Tensor) else np.iscomplexobj(scores):
            raise TypeError
        values = scores if isinstance(scores, Tensor) else torch.as_tensor(np.asarray(scores, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{method} returned {brief(scores)}: return one real number per token") from None
    if values.shape != (len(prediction),):
        raise ValueError(
            f"{method} returned scores of shape {tuple(values.shape)} for {len(prediction)} tokens: "
            "return one number per token"
        )
    values = values if values.is_floating_point() else values.to(prediction.embeddings)
    prediction.check_finite("the score", values)
    return values


def make_attribution(
    prediction: Prediction, method: str, result: Scores, options: Mapping[str, Any], *, signed: bool = False
) -> Attribution:
    """Join the scores of a method with the tokens they belong to and with facts about the prediction."""
    text, spans = prediction.located
    prompt, tokenizer, ids = prediction.prompt, prediction.tokenizer, prediction.ids.tolist()
    of_prompt = replace(
        target_facts(prediction),
        prefix_reuse=prompt.reuse,
        user_hooks=len(prompt.user_hooks),
        unknown=[place for place, token in enumerate(ids) if token == tokenizer.unknown] or None,
    )
    checks = {name: dict(counts) for name, counts in {**prompt.checks, **(result.facts.checks or {})}.items()}
    facts = replace(result.facts.completed(of_prompt), checks=checks)
    values = (result.scores, {**result.parts}, result.interactions, {**facts})
    scores, parts, interactions, known = tree_map_only(Tensor, lambda each: each.detach().cpu(), values)
    return Attribution(
        ids=prediction.ids.cpu(),
        tokens=prediction.written,
        positions=torch.arange(len(prediction)),
        offsets=torch.tensor(spans),
        special=torch.tensor(tokenizer.special(ids)),
        text=text,
        target=prediction.target,
        target_text=prediction.target_text,
        method=method,
        options={**options, "model": prompt.model_facts, "versions": versions()},
        signed=signed,
        messages=None if prompt.chat is None else prompt.chat.of_context(text, spans),
        scores=scores,
        parts=parts,
        interactions=interactions,
        diagnostics=Diagnostics.of(known),
    )


def target_facts(prediction: Prediction) -> Diagnostics:
    """Return text, log-probability and rank of the target (pairs for a contrast), or the value of a function.

    The most likely next tokens are the ``candidates``, except for an activation, which has no distribution.
    """
    if isinstance(prediction.target, Activation):
        return Diagnostics(target_value=float(prediction.value))
    ids, log_probs, write = prediction.ids.tolist(), prediction.log_probs, prediction.tokenizer.write
    highest = zip(*(part.tolist() for part in log_probs.topk(min(CANDIDATES, len(log_probs)))), strict=True)
    candidates = tuple((write(token, ids), log_prob) for log_prob, token in highest)
    if callable(prediction.target):
        return Diagnostics(target_value=float(prediction.value), candidates=candidates)

    def of_side(side: Side) -> tuple[str, float, int]:
        text = "" if isinstance(side, frozenset) else write(side, ids)  # a set has no text of its own
        rank = int((log_probs > log_probs[members(side)].max()).sum()) + 1
        return text, float(joint_logit(log_probs, side)), rank

    both = [of_side(side) for side in sides(prediction.target)]
    texts, likely, ranks = zip(*both, strict=True) if len(both) > 1 else both[0]
    return Diagnostics(target_token=texts, target_log_prob=likely, target_rank=ranks, candidates=candidates)
