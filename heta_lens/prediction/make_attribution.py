"""Scores become an `Attribution`: put beside the tokens they belong to, with what is known about the prediction."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.versions import versions
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.model.norms_and_neurons import weight_processing
from heta_lens.prediction.prediction import Prediction


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
    targets, prompt = prediction.targets, prediction.prompt
    log_probs = [float(prediction.log_probs[token]) for token in targets]
    ranks = [int((prediction.log_probs > prediction.log_probs[token]).sum()) + 1 for token in targets]
    names = [prediction.adapter.tokenizer.name(token) for token in targets]
    single = not isinstance(prediction.target, tuple)
    return {
        "target_token": names[0] if single else tuple(names),
        "target_log_prob": log_probs[0] if single else tuple(log_probs),
        "target_rank": ranks[0] if single else tuple(ranks),
        **({"other_spellings": _other_spellings(prediction)} if prediction.others else {}),
        "prefix_reuse": prompt.reuse,
        "user_hooks": len(prompt.user_hooks),
        "cache_mismatch": prompt.mismatch,
        **more,
        "checks": {name: dict(counts) for name, counts in (prompt.checks | more.get("checks", {})).items()},
    }


def _other_spellings(prediction: Prediction) -> list[dict[str, Any]]:
    tokenizer, ids = prediction.adapter.tokenizer, prediction.ids.tolist()
    return [
        {
            "id": token,
            "token": tokenizer.name(token),
            "text": tokenizer.write(token, ids),
            "log_prob": float(prediction.log_probs[token]),
        }
        for token in prediction.others
        if token not in prediction.targets
    ]


def _detached(value: Any) -> Any:
    """Every tensor in it, on the CPU and without its graph."""
    if isinstance(value, Mapping):
        return {name: _detached(item) for name, item in value.items()}
    return value.detach().cpu() if isinstance(value, Tensor) else value
