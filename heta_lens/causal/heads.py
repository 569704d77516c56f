"""The prediction without an attention head."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_at_least, check_choice, chosen_positions
from heta_lens._util.work import working
from heta_lens.model.hooks import head_outputs_name
from heta_lens.model.lock import one_at_a_time
from heta_lens.plots.html_page import heat
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.patching import cells_of_heads, check_reading, noted, patched
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

Fill: TypeAlias = Literal["zero", "mean"]


class Head(NamedTuple):
    layer: int
    head: int
    value: float

    @property
    def name(self) -> str:
        """Name in the field's notation: ``L0H1`` is head 1 of layer 0."""
        return f"L{self.layer}H{self.head}"

    def __repr__(self) -> str:
        return f"{self.name} {self.value:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class Heads:
    """A number per head and layer."""

    title: str
    values: Float[Tensor, "layer head"]
    notes: str = ""

    def top(self, k: int = 10) -> list[Head]:
        """Return the k heads with the highest values, the highest first."""
        check_at_least("k", k, 1, whole=True)
        return sorted(self._heads(), key=lambda head: -head.value)[:k]

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per head."""
        return pd.DataFrame([{"name": head.name, **head._asdict()} for head in self._heads()])

    def plot(self) -> View:
        """Draw a heat map of the heads, layer 0 on top as in TransformerLens."""
        layers, heads = self.values.shape
        rows, columns = [f"layer {at}" for at in range(layers)], [f"head {at}" for at in range(heads)]
        return heat(self.title, rows, columns, self.values, self.notes)

    def __repr__(self) -> str:
        return f"{self.title}: most by " + ", ".join(map(repr, self.top(5)))

    def _heads(self) -> list[Head]:
        rows = enumerate(self.values.tolist())
        return [Head(layer, head, value) for layer, row in rows for head, value in enumerate(row)]


@one_at_a_time("cache")
def ablate_heads(
    cache: Any,
    target: TargetLike = None,
    *,
    fill: Fill = "zero",
    positions: Iterable[int] | None = None,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Heads:
    """Compute ``g(clean) - g(without this head)`` for every head alone: above 0, the head speaks for the target.

    ``target``, ``position`` and ``tokens`` are those of `attribute`.

    Args:
        fill: the replacement of the head's output: ``zero``, or the ``mean`` of the output over the context.
        positions: the positions without the head; by default every position.
        scale: the quantity g, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: the number of copies of the context that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.
    """
    check_choice("fill", fill, get_args(Fill))
    check_reading(scale, batch)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "log_prob")
    adapter, n, read = prediction.adapter, len(prediction), partial(prediction.read, scale=scale)
    names, rows = [head_outputs_name(layer) for layer in range(adapter.layers)], list[Tensor]()
    adapter.check_points(names)
    places = chosen_positions("positions", positions, n, "of the context")
    with prediction.running(), working({"forwards": len(names) * adapter.sizes.heads + 1}, progress):
        outputs = noted(prediction, names)
        cells = cells_of_heads(adapter.sizes.heads, places, n)
        clean, batches = read(prediction.logits), prediction.batches(batch)
        for name, output in outputs.items():
            fills = output.mean(1, keepdim=True).expand_as(output) if fill == "mean" else torch.zeros_like(output)
            rows.append(clean - patched(prediction, {name: cells}, {name: fills}, read, batches))
    for layer, row in enumerate(rows):
        check_finite(row, partial("the effect of head {}.{} is {}".format, layer))
    notes = "lost" if callable(prediction.target) else f"{scale} lost"
    return Heads(f"without each head: {prediction.target_words}", torch.stack(rows).cpu(), notes)
