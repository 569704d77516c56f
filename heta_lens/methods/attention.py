"""Methods of attention: rollout, the last position's weights, norm-based attention, and value zeroing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens._util.work import Work
from heta_lens.methods.base import Method, Scores, WithBatch, WithLayer
from heta_lens.model.hooks import Hook, head_outputs, values_name
from heta_lens.prediction.prediction import Prediction

FLOOR = 1e-5  # of a change that value zeroing counts


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionMethod(Method):
    family: ClassVar = "attention"
    signed: ClassVar = False
    target_agnostic: ClassVar = True


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionLast(AttentionMethod, WithLayer):
    """Attention weights of the last position in one layer. A control, not an explanation.

    ``a_i = mean_h A^{(l,h)}[N, i]``: ≥ 0, no direction, the same for every target."""

    name: ClassVar = "attention_last"
    cost: ClassVar = "nothing, with attention in the cache; else F"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=prediction.pattern_runs(1))

    def explain(self, prediction: Prediction) -> Scores:
        pattern = prediction.patterns[-1 if self.layer is None else self.layer]
        return Scores(pattern[:, -1].mean(0))


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionRollout(AttentionMethod):
    """Attention rollout (Abnar & Zuidema 2020): attention multiplied through the layers, from the last position down.

    ``a`` is the last row of ``Â_L ⋯ Â_1``, ``Â_l = A_l + I`` with rows normalised to sum to 1: ≥ 0, no direction,
    the same for every target.

    A_l is the mean over the heads of layer l.

    - ``residual``: add the ``I``, which keeps a part of each position where it is; without it, the plain product of
      the ``A_l``, whose rows are not normalised (weight in an attention sink is lost)
    """

    residual: bool = True

    name: ClassVar = "attention_rollout"
    paper: ClassVar[str] = "Abnar & Zuidema, Quantifying attention flow in transformers, ACL 2020, arXiv:2005.00928"
    cost: ClassVar = "nothing, with attention in the cache; else 2 F"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=prediction.pattern_runs(prediction.layers))

    def explain(self, prediction: Prediction) -> Scores:
        return Scores(last_row(self._maps(prediction)))

    def _maps(self, prediction: Prediction) -> Iterator[Float[Tensor, "query key"]]:
        for pattern in reversed(prediction.patterns):
            fused = pattern.mean(0)
            if self.residual:
                fused = fused + torch.eye(len(fused)).to(fused)
                fused = fused / fused.sum(-1, keepdim=True)
            yield fused


def last_row(maps: Iterable[Float[Tensor, "query key"]]) -> Float[Tensor, "key"]:
    """Return the last position's row of the product of these maps, which come from the last layer to the first."""
    rest = iter(maps)
    row = next(rest)[-1]
    for mixed in rest:
        row = row @ mixed
    return row


def shares(rows: Float[Tensor, "query key"], own: Float[Tensor, "query key"]) -> Float[Tensor, "query key"]:
    """Divide each row by the row's sum; a row of zeros keeps the weight at the row's position."""
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / torch.where(sums > 0, sums, 1), own)


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionNorm(AttentionMethod, WithLayer):
    """Norm-based attention (Kobayashi 2020): norms of the vectors that attention moves, not only weights.

    ``a_i = ‖Σ_h α^h_Ni v^h_i W_O^h‖₂`` of one layer: ≥ 0, no direction, the same for every target.

    Values include their bias; the output's bias is left out. A norm that follows attention in the model is not applied.

    - ``reduce``: ``layer``, a single layer; or ``rollout``: the last row of the product of all layers' maps, with rows
      normalised to sum to 1 and half of each kept at its own position
    """

    reduce: Literal["layer", "rollout"] = "layer"

    name: ClassVar = "attention_norm"
    paper: ClassVar[str] = (
        "Kobayashi et al., Attention is not only a weight: analyzing transformers with vector norms, EMNLP 2020, "
        "arXiv:2004.10102"
    )
    cost: ClassVar = "nothing, with attention in the cache; else 3 F"
    adapted: ClassVar = "the authors map whole layers; here a token's score is what the last position takes from it"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {} if self.reduce == "layer" else {"layer": "reduce='rollout' (which takes every layer)"}

    def work(self, prediction: Prediction) -> Work:
        layers = 1 if self.reduce == "layer" else prediction.layers
        return Work(forwards=prediction.pattern_runs(layers) + prediction.value_runs)

    def explain(self, prediction: Prediction) -> Scores:
        n = len(prediction)
        if self.reduce == "layer":
            (norms,) = moved_norms(prediction, [-1 if self.layer is None else self.layer], [n - 1])
            return Scores(norms[0])
        own, layers = torch.eye(n).to(prediction.embeddings), reversed(range(prediction.layers))
        return Scores(last_row((shares(norms, own) + own) / 2 for norms in moved_norms(prediction, layers, range(n))))


def moved_norms(
    prediction: Prediction, layers: Iterable[int], queries: Sequence[int]
) -> Iterator[Float[Tensor, "query key"]]:
    """Yield the norms in each layer, computed for a few queries at a time, since each has a vector for every key."""
    patterns, values = prediction.patterns, prediction.values
    for layer in layers:
        wrote = head_outputs(values[layer], prediction.output_weights[layer])
        rows = rearrange(patterns[layer][:, list(queries)], "head query key -> query head key")

        def norms(rows: Float[Tensor, "query head key"], wrote: Tensor = wrote) -> Float[Tensor, "query key"]:
            return einsum(rows, wrote, "query head key, head key d -> query key d").norm(dim=-1)

        yield prediction.batches("auto").map(norms, rows, len(prediction))


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueZeroing(AttentionMethod, WithBatch):
    """Value zeroing (Mohebbi 2023): changes of every position's state when a token's value vectors are zeroed.

    ``a`` is the last row of ``S_L ⋯ S_1``: ≥ 0, no direction, the same for every target.

    ``S_l[i, j] = 1 - cos(clean, zeroed)`` of the state that leaves layer l at i, where ``zeroed`` is computed from
    clean states and patterns with the values of j set to 0 in all heads. Changes below 1e-5 count as 0. Rows are
    normalised to sum to 1; a row of zeros keeps all weight at its own position.
    """

    name: ClassVar = "value_zeroing"
    paper: ClassVar[str] = "Mohebbi et al., Quantifying context mixing in transformers, EACL 2023, arXiv:2301.12971"
    cost: ClassVar = "(N + 1) F"
    fixed: ClassVar = "the weights, and in each layer all but one token's values; layers are multiplied afterwards"
    adapted: ClassVar = "states are compared at a layer's output; a position that nothing changes keeps all weight"

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=len(prediction) + 1)

    def explain(self, prediction: Prediction) -> Scores:
        n, device = len(prediction), prediction.embeddings.device
        clean = prediction.streams(prediction.whole_ids[None], range(1, prediction.layers + 1))

        @torch.no_grad()
        def changes(sources: Int[Tensor, "source"]) -> Float[Tensor, "source l query"]:
            """Compute ``1 - cos`` of every query, in one run that gives layers clean states."""
            turned = dict[int, Tensor]()

            def without_values(live: Tensor) -> Tensor:
                zeroed = live.clone()
                zeroed[torch.arange(len(sources), device=live.device), sources.to(live.device)] = 0
                return zeroed

            def compare(layer: int, live: Tensor) -> Tensor:
                was, now = clean[layer][:, :n], live[:, :n].to(clean[layer])
                away = normalize(now, dim=-1) - normalize(was, dim=-1)  # precise also where the states hardly differ
                turned[layer] = away.square().sum(-1) / 2
                return clean[layer].to(live).expand_as(live)

            hooks: dict[str, Hook] = {values_name(layer - 1): without_values for layer in clean}
            hooks |= {prediction.adapter.stream_name(layer): partial(compare, layer) for layer in clean}
            ids = repeat(prediction.whole_ids, "pos -> source pos", source=len(sources))
            prediction.adapter.run(ids, hooks, whole=bool(prediction.user_hooks))
            return torch.stack([turned[layer] for layer in clean], 1)

        changed = prediction.batches(self.batch, n).map(changes, torch.arange(n, device=device), n)
        own = torch.eye(n).to(changed)
        by_layer = rearrange(changed, "source l query -> l query source").tril()
        return Scores(last_row(shares(torch.where(change < FLOOR, 0, change), own) for change in by_layer.flip(0)))
