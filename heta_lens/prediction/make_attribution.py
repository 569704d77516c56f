"""Scores become an `Attribution`: put beside the tokens they belong to, with what is known about the prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.target_kinds import Side, members, sides
from heta_lens._util.versions import versions
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.model.norms_and_neurons import weight_processing
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import joint_logit


def make_attribution(
    prediction: Prediction,
    method: str,
    scores: Float[Tensor, "pos"],
    parts: Mapping[str, Tensor],
    options: Mapping[str, Any],
    diagnostics: Mapping[str, Any],
    interactions: Float[Tensor, "pos pos"] | None = None,
    *,
    signed: bool = False,
) -> Attribution:
    """The scores of a method, beside the tokens they belong to."""
    text, spans = prediction.located
    chat = prediction.prompt.chat
    return Attribution(
        ids=prediction.ids.cpu(),
        tokens=prediction.written,
        positions=torch.arange(len(prediction)),
        offsets=torch.tensor(spans),
        special=torch.tensor(prediction.adapter.tokenizer.special(prediction.ids.tolist())),
        text=text,
        target=prediction.target,
        target_text=prediction.target_text,
        method=method,
        scores=_detached(scores),
        parts=_detached(parts),
        options={**options, "model": weight_processing(prediction.adapter), "versions": versions()},
        diagnostics=Diagnostics.of(_detached(_facts(prediction, diagnostics))),
        signed=signed,
        interactions=_detached(interactions),
        messages=None if chat is None else chat.of_context(text, spans),
    )


def _facts(prediction: Prediction, more: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a prediction beside the scores, and ``more`` of it from the method."""
    prompt = prediction.prompt
    return {
        **_target_facts(prediction),
        **_unknown(prediction),
        "prefix_reuse": prompt.reuse,
        "user_hooks": len(prompt.user_hooks),
        "cache_mismatch": prompt.mismatch,
        **more,
        "checks": {name: dict(counts) for name, counts in (prompt.checks | more.get("checks", {})).items()},
    }


def _target_facts(prediction: Prediction) -> dict[str, Any]:
    """How likely the target is, both sides of a contrast, or what a function gives; and what other tokens there are."""
    if callable(prediction.target):
        return {"target_value": float(prediction.value)}
    both = sides(prediction.target)
    of_each = {
        "target_token": [_written(prediction, tokens) for tokens in both],
        "target_log_prob": [float(joint_logit(prediction.log_probs, tokens)) for tokens in both],
        "target_rank": [_rank(prediction.log_probs, tokens) for tokens in both],
    }
    ids = [token for tokens in both for token in members(tokens)]
    others = [token for token in prediction.others if token not in ids]
    facts: dict[str, Any] = {
        name: tuple(values) if isinstance(prediction.target, tuple) else values[0] for name, values in of_each.items()
    }
    if prediction.others:
        facts["other_spellings"] = _spelled(prediction, others)
    if of_sets := [token for tokens in both if isinstance(tokens, frozenset) for token in members(tokens)]:
        facts["target_members"] = _spelled(prediction, of_sets)
    return facts


def _unknown(prediction: Prediction) -> dict[str, Any]:
    """Where the context has words that the tokenizer does not know."""
    unknown = prediction.adapter.tokenizer.unknown
    places = [place for place, token in enumerate(prediction.ids.tolist()) if token == unknown]
    return {"unknown": places} if places else {}


def _written(prediction: Prediction, tokens: Side) -> str:
    """A token as it is written after the context; a set has no text of its own."""
    return prediction.adapter.tokenizer.write(tokens, prediction.ids.tolist()) if isinstance(tokens, int) else ""


def _rank(log_probs: Float[Tensor, "vocab"], tokens: Side) -> int:
    """1 for the most likely token; of a set, its best member's."""
    return int((log_probs > log_probs[members(tokens)].max()).sum()) + 1


def _spelled(prediction: Prediction, tokens: Sequence[int]) -> list[dict[str, Any]]:
    tokenizer, ids = prediction.adapter.tokenizer, prediction.ids.tolist()
    return [
        {
            "id": token,
            "text": tokenizer.write(token, ids),
            "log_prob": float(prediction.log_probs[token]),
        }
        for token in tokens
    ]


def _detached(value: Any) -> Any:
    """Every tensor in it, on the CPU and without its graph."""
    if isinstance(value, Mapping):
        return {name: _detached(item) for name, item in value.items()}
    return value.detach().cpu() if isinstance(value, Tensor) else value
