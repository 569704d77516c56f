"""Value zeroing (Mohebbi 2023): how far each position's state turns when nobody may take a token's value."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from heta_lens.baselines.attention_rollout import shares, walked_down
from heta_lens.baselines.baseline import Baseline, Found
from heta_lens.baselines.reading import full_ids, streams
from heta_lens.lens import Hook, values_name
from heta_lens.options import AtLeast, Batch
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, Work

Streams: TypeAlias = Mapping[int, Float[Tensor, "1 pos d"]]  # clean, by the layer they enter


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueZeroing(Baseline):
    """``a`` is the last row of ``S_L ⋯ S_1``: ≥ 0, no direction, the same for every target.

    ``S_l[i, j] = 1 - cos(clean, zeroed)`` of the state that leaves layer l at i, where zeroed is with clean states
    entering the layer, its patterns as they are, and j's values 0 in all heads. Rows are made to sum to 1; a row of
    nothing stays with its own position.

    - ``reduce``: ``rollout``, the product; ``last``, the last layer's row; or ``mean``, over the layers' rows
    - ``floor``: what is smaller counts as nothing
    - ``batch``: copies of the context run at once
    """

    reduce: Literal["rollout", "last", "mean"] = "rollout"
    floor: Annotated[float | int, AtLeast(0, below=2.0)] = 1e-5
    batch: Batch = "auto"

    name: ClassVar = "value_zeroing"
    cost: ClassVar = "(N + 1) F"
    signed: ClassVar = False
    blind: ClassVar = True
    adapted: ClassVar = "states are compared where they leave a layer; a position that nothing changes keeps its own"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": len(prediction) + 1}

    def explain(self, asked: Prediction, work: Work) -> Found:
        after = range(1, asked.lens.layers + 1)
        clean = streams(asked, full_ids(asked)[None], after)
        work.add("forwards", 1)
        first = 0 if self.reduce == "rollout" else len(asked) - 1
        turned = partial(turns, asked, clean, first, partial(work.add, "forwards"))
        sources = torch.arange(len(asked), device=asked.embeddings.device)
        found = asked.prompt.batches(self.batch, len(asked)).map(turned, sources, len(asked))
        own = torch.eye(len(asked)).to(found)[first:]
        changes = rearrange(found, "source l query -> l query source").tril(first)
        maps = [shares(torch.where(change < self.floor, 0, change), own) for change in changes]
        if self.reduce == "rollout":
            return walked_down(reversed(maps)), {}
        rows = torch.stack([rows[-1] for rows in (maps if self.reduce == "mean" else maps[-1:])])
        return rows.mean(0), {}


@torch.no_grad()
def turns(
    asked: Prediction, clean: Streams, first: int, done: Done, sources: Int[Tensor, "source"]
) -> Float[Tensor, "source l query"]:
    """``1 - cos`` by source, layer and query from the first on; in one run, where each layer sees what it would see."""
    seen: dict[int, Tensor] = {}
    values: dict[str, Hook] = {values_name(layer - 1): partial(without_values, sources) for layer in clean}
    states: dict[str, Hook] = {
        asked.lens.stream_name(layer): partial(compare, seen, layer, slice(first, len(asked)), states)
        for layer, states in clean.items()
    }
    ids = repeat(full_ids(asked), "pos -> source pos", source=len(sources))
    asked.lens.run(ids, values | states, whole=bool(asked.prompt.user_hooks))
    done(len(sources))
    return torch.stack([seen[layer] for layer in clean], 1)


def without_values(sources: Int[Tensor, "source"], live: Tensor) -> Tensor:
    zeroed = live.clone()
    zeroed[torch.arange(len(sources), device=live.device), sources] = 0
    return zeroed


def compare(seen: dict[int, Tensor], layer: int, queries: slice, clean: Tensor, live: Tensor) -> Tensor:
    """Note how far some states turned, and hand the next layer the clean ones."""
    was, now = clean[:, queries], live[:, queries].to(clean)
    away = normalize(now, dim=-1) - normalize(was, dim=-1)  # no digits are lost where they hardly differ
    seen[layer] = away.square().sum(-1) / 2
    return clean.to(live).expand_as(live)
