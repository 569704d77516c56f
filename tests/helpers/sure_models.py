"""Models that are almost sure of what they predict."""

from typing import Any

import torch

from helpers import zoo


def sure(family: str, dtype: torch.dtype, certainty: float) -> Any:
    """A model whose last norm is turned up, so that it is nearly certain of what comes next."""
    model = zoo.bridge.__wrapped__(family, dtype)
    wrapped: Any = model.original_model
    norm = wrapped.transformer.ln_f if family == "gpt2" else wrapped.gpt_neox.final_layer_norm
    for parameter in norm.parameters():
        parameter.data *= certainty
    return model
