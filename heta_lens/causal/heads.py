"""From tokens to heads: which of them carry the gate's flow, and what the prediction does without them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

import pandas as pd
import torch
from einops import reduce, repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_at_least, check_choice, chosen_positions
from heta_lens._util.work import Done, working
from heta_lens.methods.heta.gate import Flow, by_head, norms_by_layer
from heta_lens.model.hooks import head_outputs_name
from heta_lens.model.lock import one_at_a_time
from heta_lens.plots.page import heat
from heta_lens.prediction.checks import Tokens
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.patching import check_reading, picked
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

Fill: TypeAlias = Literal["zero", "mean"]


class Head(NamedTuple):
    layer: int
    head: int
    value: float

    @property
    def name(self) -> str:
        """As ``L0H1``: head 1 of layer 0."""
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
        """The k heads with the highest values, the highest first."""
        check_at_least("k", k, 1, whole=True)
        order = self.values.flatten().argsort(descending=True, stable=True)[:k].tolist()
        heads = self._heads()
        return [heads[place] for place in order]

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        return pd.DataFrame([{"name": head.name, **head._asdict()} for head in self._heads()])

    def plot(self) -> View:
        """A heat map, layer 0 on top, as TransformerLens has it."""
        layers, heads = self.values.shape
        rows, columns = [f"layer {at}" for at in range(layers)], [f"head {at}" for at in range(heads)]
        return heat(self.title, rows, columns, self.values, self.notes)

    def __repr__(self) -> str:
        return f"{self.title}: most by " + ", ".join(map(repr, self.top(5)))

    def _heads(self) -> list[Head]:
        rows = enumerate(self.values.tolist())
        return [Head(layer, head, value) for layer, row in rows for head, value in enumerate(row)]


@dataclass(frozen=True, eq=False, repr=False)
class GateHeads:
    """How much of the gate M flows through each head of each layer, from each token; ``shares`` sum to 1."""

    shares: Float[Tensor, "layer head pos"]
    tokens: tuple[str, ...]

    def of(self, source: int | None = None) -> Heads:
        """What flows through each head from one token, or from all of them."""
        places = chosen_positions("source", None if source is None else [source], len(self.tokens), "of the context")
        named = "all tokens" if source is None else repr(self.tokens[source])
        return Heads(f"the gate's flow from {named}", self.shares[..., places].sum(-1), "shares of the gate")

    def top(self, k: int = 10, source: int | None = None) -> list[Head]:
        """The k heads through which most flows, from one token or from all of them."""
        return self.of(source).top(k)

    def to_frame(self) -> pd.DataFrame:
        """One row per layer, head and token."""
        layers, heads, _ = self.shares.shape
        return pd.DataFrame(
            (layer, head, at, token, float(self.shares[layer, head, at]))
            for layer in range(layers)
            for head in range(heads)
            for at, token in enumerate(self.tokens)
        ).set_axis(["layer", "head", "position", "token", "share"], axis=1)

    def plot(self, source: int | None = None) -> View:
        """A heat map of layers and heads, layer 0 on top, as TransformerLens has it."""
        return self.of(source).plot()

    def __repr__(self) -> str:
        return repr(self.of())


@one_at_a_time("cache")
def gate_heads(
    cache: Any,
    *,
    flow: Flow = "suffix",
    value_norm: int = 1,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
) -> GateHeads:
    """Take the gate of HETA apart: summed over heads and layers, shares are its M.

    Args:
        cache: of the prompt that is explained.
        flow: as `Heta` has it.
        value_norm: as `Heta` has it.
        position: of the predicted token, as `attribute` is given it.
        tokens: the ids that were cached; without them they are read off the cached embeddings.
    """
    check_choice("flow", flow, get_args(Flow))
    check_choice("value_norm", value_norm, (1, 2))
    prediction = Prediction.from_cache(cache, position=position, tokens=tokens)
    norms = norms_by_layer(prediction.values, prediction.output_weights, value_norm)
    return GateHeads(by_head(prediction.patterns, norms, flow).cpu(), prediction.written)


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
    """``g(clean) - g(without this head)`` for every head alone: above 0, it speaks for the target.

    Args:
        cache: of the prompt that is explained.
        target: as `attribute` is given it.
        fill: what stands for what a head hands on: nothing (``zero``), or its ``mean`` over the context.
        positions: where it is emptied; everywhere, if none are named.
        position: as `attribute` is given it.
        tokens: as `attribute` is given them.
        scale: what g is, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: how many copies of the context run at once.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    check_choice("fill", fill, get_args(Fill))
    check_reading(scale, batch)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "log_prob")
    names = [head_outputs_name(layer) for layer in range(prediction.adapter.layers)]
    prediction.adapter.check_points(names)
    places = chosen_positions("positions", positions, len(prediction), "of the context")
    cost = {"forwards": prediction.adapter.layers * prediction.adapter.sizes.heads + 1}
    with prediction.running(), working(cost, progress) as work, torch.no_grad():
        done = partial(work.add, "forwards")
        means = picked(
            prediction, prediction.embeddings[None], 0, dict.fromkeys(names, partial(_mean, len(prediction)))
        )
        run = partial(_without, prediction, places, scale, done)
        clean = likelihood(prediction, prediction.embeddings[None], scale, done)
        batches, heads = prediction.prompt.batches(batch, len(prediction)), torch.arange(prediction.adapter.sizes.heads)
        rows = []
        for layer, name in enumerate(names):
            instead = means[name] if fill == "mean" else torch.zeros_like(means[name])
            row = clean - batches.map(partial(run, name, instead), heads, len(prediction))
            check_finite(row, partial("the effect of head {}.{} is {}".format, layer))
            rows.append(row)
    notes = "lost" if callable(prediction.target) else f"{scale} lost"
    return Heads(f"without each head: {prediction.target_words}", torch.stack(rows).cpu(), notes)


def _mean(n: int, live: Float[Tensor, "1 pos head d_head"]) -> Float[Tensor, "head d_head"]:
    return reduce(live[:, :n], "1 pos head d_head -> head d_head", "mean")


def _without(
    prediction: Prediction,
    places: list[int],
    scale: Scale,
    done: Done,
    name: str,
    instead: Float[Tensor, "head d_head"],
    heads: Int[Tensor, "copy"],
) -> Float[Tensor, "copy"]:
    """How likely the target is, in each copy without one head of a layer."""

    def empty(live: Float[Tensor, "copy pos head d_head"]) -> Tensor:
        live = live.clone()
        for copy, head in zip(live, heads.tolist(), strict=True):
            copy[places, head] = instead[head].to(live)
        return live

    with prediction.adapter.hooked([(name, empty)]):
        return likelihood(
            prediction, repeat(prediction.embeddings, "pos d -> copy pos d", copy=len(heads)), scale, done
        )
