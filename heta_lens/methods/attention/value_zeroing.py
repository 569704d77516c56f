"""Value zeroing (Mohebbi 2023): how much each position's state changes when a token's value vectors are zeroed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens._util.options import AtLeast
from heta_lens._util.work_counting import Done, Work
from heta_lens.methods.attention.attention_rollout import shares, walked_down
from heta_lens.methods.base import Scores
from heta_lens.methods.layer_reading import full_ids, streams
from heta_lens.methods.shared_options import WithBatch
from heta_lens.model.hook_sites import values_name
from heta_lens.model.hooking import Hook
from heta_lens.prediction.prediction import Prediction

Streams: TypeAlias = Mapping[int, Float[Tensor, "1 pos d"]]  # clean, by the layer they enter


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueZeroing(WithBatch):
    """``a`` is the last row of ``S_L ⋯ S_1``: ≥ 0, no direction, the same for every target.

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
