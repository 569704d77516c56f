"""Norm-based attention (Kobayashi 2020): how large the vectors are that attention moves, not just their weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens.baselines.attention_rollout import shares, walked_down
from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import check_layer, chosen_layer, runs_to_read
from heta_lens.lens import pattern_name, values_name
from heta_lens.options import AtLeast
from heta_lens.prediction import Prediction
from heta_lens.progress import Work


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionNorm(Baseline):
    """``a_i = ‖Σ_h α^h_Ni v^h_i W_O^h‖₂`` of one layer: ≥ 0, no direction, the same for every target.

    Values have their bias, the output has none. Models that normalise what attention wrote do so after this.

    - ``heads``: ``summed``, the norm of the heads' sum, or ``apart``, the sum of their norms
    - ``reduce``: ``layer``, one of them; ``mean``, over all of them; or ``rollout``: the last row of the product of
      all layers' maps, whose rows are made to sum to 1 and half of which stay with their own position
    - ``layer``: which, counted from 0; None is the last
    - ``residual``: what a position held before counts as moved by it to itself: its state is one more vector beside
      the heads' (Kobayashi 2021, without the norm that follows there), and no half stays with it in a ``rollout``
    """

    heads: Literal["summed", "apart"] = "summed"
    reduce: Literal["layer", "mean", "rollout"] = "layer"
    layer: Annotated[int | None, AtLeast(0, whole=True)] = None
    residual: bool = False

    name: ClassVar = "attention_norm"
    cost: ClassVar = "nothing, with attention in the cache; else 2L F; L F more with the residual"
    signed: ClassVar = False
    blind: ClassVar = True
    adapted: ClassVar = "its authors map whole layers: a token's score is what the last position takes from it"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {} if self.reduce == "layer" else {"layer": f"reduce={self.reduce!r} (which takes every layer)"}

    def check(self, prediction: Prediction) -> None:
        check_layer("layer", self.layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        layers = 1 if self.reduce == "layer" else prediction.lens.layers
        read = sum(runs_to_read(prediction, name, layers) for name in (pattern_name, values_name))
        return {"forwards": read + (layers if self.residual else 0)}

    def explain(self, asked: Prediction, work: Work) -> Found:
        if self.reduce == "rollout":
            scores = walked_down(self._maps(asked))
        else:
            of = range(asked.lens.layers) if self.reduce == "mean" else [chosen_layer(self.layer, asked)]
            last = torch.tensor([len(asked) - 1], device=asked.embeddings.device)
            scores = torch.stack([self._norms(asked, layer, last)[0] for layer in of]).mean(0)
        work.add("forwards", self.work(asked)["forwards"])
        return scores, {}

    def _maps(self, asked: Prediction) -> Iterator[Float[Tensor, "query key"]]:
        """What each position takes from where, from the last layer down."""
        own = torch.eye(len(asked)).to(asked.embeddings)
        every = torch.arange(len(asked), device=own.device)
        for layer in reversed(range(asked.lens.layers)):
            moved = shares(self._norms(asked, layer, every), own)
            yield moved if self.residual else (moved + own) / 2

    def _norms(self, asked: Prediction, layer: int, queries: Int[Tensor, "query"]) -> Float[Tensor, "query key"]:
        """Some queries at a time: each has a vector for every key."""
        pattern = asked.patterns[layer]
        wrote = written(asked.values[layer], asked.output_weights[layer])
        if self.residual:
            pattern, wrote = beside_the_residual(pattern, wrote, asked.states(layer))
        rows = rearrange(pattern[:, queries], "head query key -> query head key")
        moved = partial(moved_norms, wrote=wrote, summed=self.heads == "summed")
        return asked.prompt.batches("auto", len(asked)).map(moved, rows, len(asked))


def written(
    values: Float[Tensor, "pos group d_head"], output: Float[Tensor, "head d_head d"]
) -> Float[Tensor, "head pos d"]:
    """What each head would write if it looked at one position only."""
    shared = repeat(values, "pos group d_head -> (group share) pos d_head", share=len(output) // values.shape[1])
    return einsum(shared, output, "head pos d_head, head d_head d -> head pos d")


def beside_the_residual(
    pattern: Float[Tensor, "head pos pos"], wrote: Float[Tensor, "head pos d"], states: Float[Tensor, "pos d"]
) -> tuple[Float[Tensor, "more pos pos"], Float[Tensor, "more pos d"]]:
    """The residual stream as one more head, which looks at its own position and writes what is there."""
    own = torch.eye(len(states)).to(pattern)
    return torch.cat([pattern, own[None]]), torch.cat([wrote, states[None]])


def moved_norms(
    rows: Float[Tensor, "query head key"], wrote: Float[Tensor, "head key d"], summed: bool
) -> Float[Tensor, "query key"]:
    if summed:
        return einsum(rows, wrote, "query head key, head key d -> query key d").norm(dim=-1)
    return einsum(rows, wrote.norm(dim=-1), "query head key, head key -> query key")
