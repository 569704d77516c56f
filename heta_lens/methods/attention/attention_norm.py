"""Norm-based attention (Kobayashi 2020): the norms of the vectors that attention moves, not only its weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.attention_rollout import shares, walked_down
from heta_lens.methods.base import Scores
from heta_lens.methods.layer_reading import chosen_layer, pattern_runs, value_runs
from heta_lens.methods.shared_options import WithLayer
from heta_lens.model.head_outputs import head_outputs
from heta_lens.prediction.prediction import Prediction


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionNorm(WithLayer):
    """``a_i = ‖Σ_h α^h_Ni v^h_i W_O^h‖₂`` of one layer: ≥ 0, no direction, the same for every target.

    Values include their bias; the output's bias is left out. A norm that follows attention in the model is not applied.

    - ``heads``: ``summed``, the norm of the sum over heads, or ``apart``, the sum of the heads' norms
    - ``reduce``: ``layer``, one of them; ``mean``, over all of them; or ``rollout``: the last row of the product of all
      layers' maps, with rows normalised to sum to 1 and half of each kept at its own position
    - ``layer``: which layer, counted from 0; None is the last
    - ``residual``: count the residual stream as one more head that attends to its own position (Kobayashi 2021, without
      the norm that follows there); a ``rollout`` then keeps no further half
    """

    heads: Literal["summed", "apart"] = "summed"
    reduce: Literal["layer", "mean", "rollout"] = "layer"
    residual: bool = False

    name: ClassVar = "attention_norm"
    paper: ClassVar[str] = (
        "Kobayashi et al., Attention is not only a weight: analyzing transformers with vector norms, EMNLP 2020, "
        "arXiv:2004.10102"
    )
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else 3 F; L F more with the residual"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "the authors map whole layers; here a token's score is what the last position takes from it"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {} if self.reduce == "layer" else {"layer": f"reduce={self.reduce!r} (which takes every layer)"}

    def work(self, prediction: Prediction) -> dict[str, int]:
        layers = 1 if self.reduce == "layer" else prediction.adapter.layers
        read = pattern_runs(prediction, layers) + value_runs(prediction)
        return {"forwards": read + (layers if self.residual else 0)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        if self.reduce == "rollout":
            scores = walked_down(self._maps(prediction))
        else:
            of = range(prediction.adapter.layers) if self.reduce == "mean" else [chosen_layer(self.layer, prediction)]
            last = torch.tensor([len(prediction) - 1], device=prediction.embeddings.device)
            moved = Moved.of(prediction)
            scores = torch.stack([self._norms(moved, layer, last)[0] for layer in of]).mean(0)
        progress.add("forwards", self.work(prediction)["forwards"])
        return Scores(scores)

    def _maps(self, prediction: Prediction) -> Iterator[Float[Tensor, "query key"]]:
        """How much each position takes from every other, from the last layer down."""
        own, read = torch.eye(len(prediction)).to(prediction.embeddings), Moved.of(prediction)
        every = torch.arange(len(prediction), device=own.device)
        for layer in reversed(range(prediction.adapter.layers)):
            moved = shares(self._norms(read, layer, every), own)
            yield moved if self.residual else (moved + own) / 2

    def _norms(self, read: "Moved", layer: int, queries: Int[Tensor, "query"]) -> Float[Tensor, "query key"]:
        """A few queries at a time, since each has a vector for every key."""
        prediction, pattern = read.prediction, read.patterns[layer]
        wrote = head_outputs(read.values[layer], prediction.output_weights[layer])
        if self.residual:
            pattern, wrote = beside_the_residual(pattern, wrote, prediction.states(layer))
        rows = rearrange(pattern[:, queries], "head query key -> query head key")
        moved = partial(moved_norms, wrote=wrote, summed=self.heads == "summed")
        return prediction.prompt.batches("auto", len(prediction)).map(moved, rows, len(prediction))


class Moved(NamedTuple):
    """What attention moves, and how much of it, layer by layer: read by this once, where the cache has neither."""

    prediction: Prediction
    patterns: Sequence[Float[Tensor, "head pos pos"]]
    values: Sequence[Float[Tensor, "pos group d_head"]]

    @classmethod
    def of(cls, prediction: Prediction) -> "Moved":
        return cls(prediction, prediction.patterns, prediction.values)


def beside_the_residual(
    pattern: Float[Tensor, "head pos pos"], wrote: Float[Tensor, "head pos d"], states: Float[Tensor, "pos d"]
) -> tuple[Float[Tensor, "more pos pos"], Float[Tensor, "more pos d"]]:
    """The residual stream as one more head, which attends to its own position and copies it."""
    own = torch.eye(len(states)).to(pattern)
    return torch.cat([pattern, own[None]]), torch.cat([wrote, states[None]])


def moved_norms(
    rows: Float[Tensor, "query head key"], wrote: Float[Tensor, "head key d"], summed: bool
) -> Float[Tensor, "query key"]:
    if summed:
        return einsum(rows, wrote, "query head key, head key d -> query key d").norm(dim=-1)
    return einsum(rows, wrote.norm(dim=-1), "query head key, head key -> query key")
