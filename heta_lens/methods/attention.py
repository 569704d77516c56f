"""Attention rollout (Abnar & Zuidema 2020): attention multiplied through the layers, from the last position down."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens._util.options import AtLeast
from heta_lens._util.work import Done, Work
from heta_lens.methods.base import Method, Scores
from heta_lens.methods.options import (
    WithBatch,
    WithLayer,
    check_layer,
    chosen_layer,
    full_ids,
    pattern_runs,
    streams,
    value_runs,
)
from heta_lens.model.hooks import Hook, head_outputs, values_name
from heta_lens.prediction.prediction import Prediction

Fusion: TypeAlias = Literal["mean", "max", "min"]

FUSIONS: dict[Fusion, Callable[[Tensor], Tensor]] = {
    "mean": lambda pattern: pattern.mean(0),
    "max": lambda pattern: pattern.amax(0),
    "min": lambda pattern: pattern.amin(0),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionRollout(Method):
    """Attention rollout (Abnar & Zuidema 2020): attention multiplied through the layers, from the last position down.

    ``a`` is the last row of ``Â_L ⋯ Â_1``, ``Â_l = A_l + I`` with rows normalised to sum to 1: ≥ 0, no direction.

    A_l fuses the heads of layer l. The scores are the same for every target.

    - ``residual``: add the ``I``, which keeps a part of each position where it is; without it, the plain product of
      the ``A_l``, whose rows are not normalised (weight in an attention sink is lost)
    - ``head_fusion``: how heads are fused: ``mean``, ``max`` or ``min``
    - ``start_layer``: leave out the layers below this one
    """

    residual: bool = True
    head_fusion: Fusion = "mean"
    start_layer: Annotated[int, AtLeast(0, whole=True)] = 0

    name: ClassVar = "attention_rollout"
    paper: ClassVar[str] = "Abnar & Zuidema, Quantifying attention flow in transformers, ACL 2020, arXiv:2005.00928"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else 2 F"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        check_layer("start_layer", self.start_layer, prediction)

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, prediction.adapter.layers - self.start_layer)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        patterns = prediction.patterns
        fused = (
            FUSIONS[self.head_fusion](patterns[layer])
            for layer in reversed(range(self.start_layer, prediction.adapter.layers))
        )
        scores = walked_down(with_residual(pattern) if self.residual else pattern for pattern in fused)
        progress.add("forwards", self.work(prediction)["forwards"])
        return Scores(scores)


def with_residual(pattern: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    kept = pattern + torch.eye(len(pattern)).to(pattern)
    return kept / kept.sum(-1, keepdim=True)


def walked_down(maps: Iterable[Float[Tensor, "query key"]]) -> Float[Tensor, "key"]:
    """The last position's row of the product of these maps, which come from the last layer to the first."""
    row = None
    for mixed in maps:
        row = mixed[-1] if row is None else row @ mixed
    assert row is not None, "there is at least one layer"
    return row


def shares(rows: Float[Tensor, "query key"], own: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """Each row divided by its sum; a row of zeros keeps all weight at its ``own`` position."""
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / torch.where(sums > 0, sums, 1), own)


# ------------------------------------------------------------------------------------------------------ attention last


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionLast(WithLayer):
    """Attention weights of the last position in one layer. A control, not an explanation.

    ``a_i = mean_h A^{(l,h)}[N, i]``: ≥ 0, no direction, the same for every target."""

    name: ClassVar = "attention_last"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else F"
    signed: ClassVar = False
    target_agnostic: ClassVar = True

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, 1)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        pattern = prediction.patterns[chosen_layer(self.layer, prediction)]
        progress.add("forwards", self.work(prediction)["forwards"])
        return Scores(pattern[:, -1].mean(0))


# ------------------------------------------------------------------------------------------------------ attention norm


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionNorm(WithLayer):
    """Norm-based attention (Kobayashi 2020): the norms of the vectors that attention moves, not only its weights.

    ``a_i = ‖Σ_h α^h_Ni v^h_i W_O^h‖₂`` of one layer: ≥ 0, no direction, the same for every target.

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


# ------------------------------------------------------------------------------------------------------- value zeroing


Streams: TypeAlias = Mapping[int, Float[Tensor, "1 pos d"]]  # clean, by the layer they enter


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueZeroing(WithBatch):
    """Value zeroing (Mohebbi 2023): how much each position's state changes when a token's value vectors are zeroed.

    ``a`` is the last row of ``S_L ⋯ S_1``: ≥ 0, no direction, the same for every target.

    ``S_l[i, j] = 1 - cos(clean, zeroed)`` of the state that leaves layer l at i, where ``zeroed`` is computed from
    clean states and patterns with the values of j set to 0 in all heads. Rows are normalised to sum to 1; a row of
    zeros keeps all weight at its own position.

    - ``reduce``: ``rollout``, the product; ``last``, the last layer's row; or ``mean``, over the layers' rows
    - ``floor``: smaller changes count as 0
    """

    reduce: Literal["rollout", "last", "mean"] = "rollout"
    floor: Annotated[float | int, AtLeast(0, below=2.0)] = 1e-5

    name: ClassVar = "value_zeroing"
    paper: ClassVar[str] = "Mohebbi et al., Quantifying context mixing in transformers, EACL 2023, arXiv:2301.12971"
    family: ClassVar = "attention"
    cost: ClassVar = "(N + 1) F"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "states are compared at a layer's output; a position that nothing changes keeps all weight"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": len(prediction) + 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        after = range(1, prediction.adapter.layers + 1)
        clean = streams(prediction, full_ids(prediction)[None], after)
        progress.add("forwards", 1)
        first = 0 if self.reduce == "rollout" else len(prediction) - 1
        turned = partial(turns, prediction, clean, first, partial(progress.add, "forwards"))
        sources = torch.arange(len(prediction), device=prediction.embeddings.device)
        turned_by_source = prediction.prompt.batches(self.batch, len(prediction)).map(turned, sources, len(prediction))
        own = torch.eye(len(prediction)).to(turned_by_source)[first:]
        changes = rearrange(turned_by_source, "source l query -> l query source").tril(first)
        maps = [shares(torch.where(change < self.floor, 0, change), own) for change in changes]
        if self.reduce == "rollout":
            return Scores(walked_down(reversed(maps)))
        rows = torch.stack([rows[-1] for rows in (maps if self.reduce == "mean" else maps[-1:])])
        return Scores(rows.mean(0))


@torch.no_grad()
def turns(
    prediction: Prediction, clean: Streams, first: int, done: Done, sources: Int[Tensor, "source"]
) -> Float[Tensor, "source l query"]:
    """``1 - cos`` by source, layer and query from the first on; all layers in one run, each given clean states."""
    changes: dict[int, Tensor] = {}
    values: dict[str, Hook] = {values_name(layer - 1): partial(without_values, sources) for layer in clean}
    states: dict[str, Hook] = {
        prediction.adapter.stream_name(layer): partial(compare, changes, layer, slice(first, len(prediction)), states)
        for layer, states in clean.items()
    }
    ids = repeat(full_ids(prediction), "pos -> source pos", source=len(sources))
    prediction.adapter.run(ids, values | states, whole=bool(prediction.prompt.user_hooks))
    done(len(sources))
    return torch.stack([changes[layer] for layer in clean], 1)


def without_values(sources: Int[Tensor, "source"], live: Tensor) -> Tensor:
    zeroed = live.clone()
    zeroed[torch.arange(len(sources), device=live.device), sources] = 0
    return zeroed


def compare(changes: dict[int, Tensor], layer: int, queries: slice, clean: Tensor, live: Tensor) -> Tensor:
    """Record how far the states turned, and pass the clean ones to the next layer."""
    was, now = clean[:, queries], live[:, queries].to(clean)
    away = normalize(now, dim=-1) - normalize(was, dim=-1)  # precise also where they hardly differ
    changes[layer] = away.square().sum(-1) / 2
    return clean.to(live).expand_as(live)
