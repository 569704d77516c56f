"""AT2 (Cohen-Wang 2025): the attention of every head, with weights that were fitted to the effects of ablations."""

from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, ClassVar

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.head_weights import HeadWeights, demo_weights, equal_weights
from heta_lens.methods.base import Scores
from heta_lens.methods.layer_reading import pattern_runs
from heta_lens.methods.shared_options import WithBos
from heta_lens.prediction.prediction import Prediction

NOTE = "heads have equal weights, which were not fitted to this model: heta-lens fit-at2 writes a file for weights="


def check_weights(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str | PathLike | Tensor):
        raise TypeError(f"{name}={value!r} must be a file of heta-lens fit-at2, or a tensor [layer, head]")
    if isinstance(value, Tensor) and (value.ndim != 2 or not value.is_floating_point()):
        raise ValueError(f"{name} must be floats of shape [layer, head], not {value.dtype} of {tuple(value.shape)}")


@dataclass(frozen=True, eq=False, kw_only=True)
class At2(WithBos):
    """``a_j = Σ_lh θ_lh A^lh_Nj``: above 0 speaks for what is predicted, the same for every target.

    A are the attention patterns, N the position that predicts. The weights θ of heads are fitted once per model, so
    that the sum of the scores that an ablation leaves correlates with how likely the answer then is.

    - ``weights``: a file that ``heta-lens fit-at2`` wrote, or a tensor ``[layer, head]``; None takes those that ship
      with the demo model, and on other models equal weights, which ``diagnostics["note"]`` says
    - ``keep_bos``: give a beginning-of-text token a score of 0
    """

    weights: Annotated[str | PathLike[str] | Tensor | None, check_weights] = None

    name: ClassVar = "at2"
    paper: ClassVar[str] = "Cohen-Wang, Chuang & Madry, Learning to attribute with attention, 2025, arXiv:2504.13752"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else 2 F; and once per model, the fit"
    target_agnostic: ClassVar = True
    adapted: ClassVar = "fitted to ablations that mask embeddings, of the first token of an answer"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        self._weights(prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, prediction.adapter.layers)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        weights, note = self._weights(prediction)
        scores = einsum(weights, attended(prediction), "layer head, layer head key -> key")
        progress.add("forwards", self.work(prediction)["forwards"])
        if self.keep_bos and prediction.begins:
            scores[0] = 0
        return Scores(scores, {"note": note} if note else {})

    def _weights(self, prediction: Prediction) -> tuple[Float[Tensor, "layer head"], str]:
        """The weights, and what there is to say about them."""
        adapter, note = prediction.adapter, ""
        if isinstance(self.weights, Tensor):
            weights = self.weights
        elif self.weights is not None:
            kept = HeadWeights.load(self.weights)
            if not kept.belongs_to(adapter):
                raise ValueError(
                    f"weights={str(self.weights)!r} were fitted to another model, {kept.model!r}: fit them anew"
                )
            weights = kept.weights
        elif demo_weights().belongs_to(adapter):
            weights = demo_weights().weights
        else:
            weights, note = equal_weights(adapter), NOTE
        there = (adapter.layers, int(adapter.model.cfg.n_heads))
        if tuple(weights.shape) != there:
            raise ValueError(f"weights are of shape {tuple(weights.shape)}; this model's heads are {there}")
        return weights.detach().to(prediction.embeddings), note


def attended(prediction: Prediction) -> Float[Tensor, "layer head key"]:
    """How much each head attends to every token from the position that predicts."""
    patterns = prediction.patterns
    rows = [patterns[layer][:, -1] for layer in range(prediction.adapter.layers)]
    return torch.stack([row.to(prediction.embeddings) for row in rows])
