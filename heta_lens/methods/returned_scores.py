"""What a method returned, checked: one finite number per token."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.file_reading import brief
from heta_lens.prediction.prediction import Prediction


def checked_scores(method: str, scores: Any, prediction: Prediction) -> Float[Tensor, "pos"]:
    """Scores as a tensor; refused unless they are one finite number per token."""
    values = scores
    if not isinstance(scores, Tensor):
        try:
            values = torch.as_tensor(np.asarray(scores, dtype=np.float64))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{method} returned {brief(scores)}: return one number per token") from None
    if values.shape != (len(prediction),):
        raise ValueError(
            f"{method} returned scores of shape {tuple(values.shape)} for {len(prediction)} tokens: "
            "return one number per token"
        )
    if values.is_complex():
        raise TypeError(f"{method} returned complex scores: return one real number per token")
    values = values if values.is_floating_point() else values.to(prediction.embeddings)
    prediction.check_finite("the score", values)
    return values
