"""Activation patching: clean activations in a corrupted run, or values of a prompt in another prompt.

The grids are the grids of `transformer_lens.patching`, cell for cell. But many cells run at once, and the clean
activations come from a live run, so a cache needs only the activations that `names_filter` keeps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from textwrap import shorten
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

import pandas as pd
import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_at_least, check_choice, chosen_positions
from heta_lens._util.target_kinds import described
from heta_lens._util.work import working
from heta_lens.attribution import Attribution
from heta_lens.metrics.evidence import ranked
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, added_names, head_outputs_name, note, queries_keys_names, values_name
from heta_lens.model.lock import changing, one_at_a_time
from heta_lens.plots.figures import exports_of, patch_grid
from heta_lens.plots.html_page import heat
from heta_lens.prediction.cache import Activations, Tokens, check_causal
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.patching import check_reading, values_put
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

ByPosition: TypeAlias = Literal["resid_pre", "attn_out", "mlp_out"]
ByHead: TypeAlias = Literal["head_out", "head_q", "head_k", "head_v"]
NOTHING_LOST = "nothing was lost: the target is as likely in the clean run as in the corrupted one"


class Patch(NamedTuple):
    """A cell of a grid: the likelihood of the target (``value``), and its place between corrupted (0) and clean (1)."""

    layer: int
    column: int
    """The position, or the head."""
    label: str
    value: float
    restored: float


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """Likelihood of the target after every patch, in nats or on the chosen scale.

    ``clean`` and ``corrupted`` are the likelihoods in the two runs without patches. ``layers`` and ``columns``
    (positions; heads for a grid ``of_heads``) are the numbers of rows and columns, by default from 0, and ``labels``
    the names of the columns. ``forwards`` is the cost.
    """

    title: str
    values: Float[Tensor, "layer column"]
    labels: tuple[str, ...]
    clean: float
    corrupted: float
    forwards: int
    layers: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    of_heads: bool = False

    def __post_init__(self) -> None:
        for name, count in zip(("layers", "columns"), self.values.shape, strict=True):
            object.__setattr__(self, name, getattr(self, name) or tuple(range(count)))

    @property
    def restored(self) -> Float[Tensor, "layer column"]:
        """Share of the loss restored by every patch, from 0 to 1 for the whole loss; NaN without a loss."""
        return (self.values - self.corrupted) / ((self.clean - self.corrupted) or nan)

    def top(self, k: int = 10) -> list[Patch]:
        """Return the k patches with the largest restored shares, best first."""
        check_at_least("k", k, 1, whole=True)
        sign = 1 if self.clean >= self.corrupted else -1
        return sorted(self._patches(), key=lambda patch: -sign * patch.value)[:k]

    def check_something_lost(self) -> None:
        if self.clean == self.corrupted:
            raise ValueError(NOTHING_LOST)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per patch."""
        return pd.DataFrame(self._patches())

    def plot(self) -> View:
        """Draw a heat map of the restored shares, layer 0 on top as in TransformerLens."""
        self.check_something_lost()
        names = [f"layer {layer}" for layer in self.layers]
        places = () if self.of_heads else self.columns
        note = f"restored: {self._range}" + "; the columns are the corrupted run's tokens" * (not self.of_heads)
        view = heat(self.title, names, self.labels, self.restored, note, places)
        figure = partial(patch_grid, self.title, self.restored, self.layers, self.labels, places, self._range)
        return replace(view, exports=exports_of(figure))

    def __repr__(self) -> str:
        if self.clean == self.corrupted:
            return f"{self.title}: nothing was lost, {self.clean:.4g} in both runs"
        best = ", ".join(
            f"layer {patch.layer} {patch.label!r} at {patch.column} {patch.restored:.2f}" for patch in self.top(3)
        )
        return f"{self.title}: {self._range}; most restored by {best}"

    @property
    def _range(self) -> str:
        return f"0 is the corrupted run ({self.corrupted:.4g}), 1 the clean run ({self.clean:.4g})"

    def _patches(self) -> list[Patch]:
        return [
            Patch(layer, column, label, value, restored)
            for layer, values, shares in zip(self.layers, self.values.tolist(), self.restored.tolist(), strict=True)
            for column, label, value, restored in zip(self.columns, self.labels, values, shares, strict=True)
        ]


# -------------------------------------------------------------------------------------------------------- prompt pairs
def shared_adapter(cache: Any, other_cache: Any) -> ModelAdapter:
    """Return the adapter of the model behind two caches; refuse caches of different models."""
    adapter = ModelAdapter.of(cache)
    if ModelAdapter.of(other_cache).model is not adapter.model:
        raise ValueError("the two caches are of two models: take both from the same one")
    return adapter


@contextmanager
def named_as(name: str) -> Iterator[None]:
    """Rename ``tokens=`` in errors to the caller's name of the argument."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("tokens=", f"{name}=")) from None


def check_explains(attribution: Attribution, prediction: Prediction, *others: Prediction) -> None:
    """Refuse an attribution of a prompt or position outside the given predictions."""
    for context in (prediction, *others):
        same_text = attribution.text == context.located[0]
        if same_text and torch.equal(context.ids.cpu()[attribution.positions], attribution.ids):
            return
    where = "neither prompt" if others else "another prompt than the cache, or of another position="
    explained, cached = (shorten(text, 60, placeholder=" …") for text in (attribution.text, prediction.located[0]))
    raise ValueError(
        f"this attribution is of {where}: it explains {described(attribution.target, attribution.target_text)} by "
        f"{explained!r}, and the cache is of {cached!r}: give the cache that it was made from"
    )


def predictions_of_both(
    clean_cache: Any, corrupted_cache: Any, target: TargetLike, tokens: Tokens, corrupted_tokens: Tokens, scale: Scale
) -> tuple[Prediction, Prediction]:
    """Return the predictions of the same target after the clean and the corrupted prompt."""
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    with named_as("corrupted_tokens"):
        corrupted = Prediction.from_cache(corrupted_cache, clean.target, tokens=corrupted_tokens)
    if len(clean) != len(corrupted):
        counts = f"the corrupted prompt has {len(corrupted)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of the same length")
    check_scale(clean.target, scale, "log_prob")
    return clean, corrupted


# -------------------------------------------------------------------------------------------------------- patched runs
@dataclass(frozen=True, eq=False)
class PatchedRuns:
    """Runs of the corrupted prompt with clean activations (by layer), and the likelihoods in the unpatched runs."""

    corrupted: Prediction
    what: ByPosition | ByHead
    activations: Mapping[int, Float[Tensor, "pos ..."]]
    scale: Scale
    clean_likelihood: Float[Tensor, ""]
    corrupted_likelihood: Float[Tensor, ""]

    @classmethod
    def of(
        cls, clean: Prediction, corrupted: Prediction, what: ByPosition | ByHead, layers: Sequence[int], scale: Scale
    ) -> "PatchedRuns":
        """Run the two prompts without patches, and keep the activations of the clean prompt."""
        live: dict[int, Tensor] = {}
        with clean.adapter.hooked([(site_name(clean.adapter, what, at), note(live, at)) for at in layers]):
            likely = _likelihood(clean, scale)
        activations = {layer: activation[0] for layer, activation in live.items()}
        return cls(corrupted, what, activations, scale, likely, _likelihood(corrupted, scale))

    def patched(self, layer: int, members: Bool[Tensor, "cell pos *head"], batch: Batch) -> Float[Tensor, "cell"]:
        """Return the likelihood for each cell of a layer's row, in a run with the clean activation of this cell."""
        corrupted, name = self.corrupted, site_name(self.corrupted.adapter, self.what, layer)

        def run(cells: Bool[Tensor, "copy pos *head"]) -> Float[Tensor, "copy"]:
            first = int(rearrange(cells, "copy pos ... -> pos (copy ...)").any(1).nonzero()[0])
            # before the hook is on, because the kept keys and values must be corrupted ones
            start = first if first and corrupted.prompt.prefix().kept is not None else 0
            places, clean = cells[:, start:, ..., None], self.activations[layer][start:]
            states = repeat(corrupted.embeddings[start:], "pos d -> copy pos d", copy=len(cells))

            def put(live: Float[Tensor, "copy pos *head d"]) -> Float[Tensor, "copy pos *head d"]:
                return torch.where(places.to(live.device), clean.to(live), live)

            with corrupted.adapter.hooked([(name, put)]):
                return likelihood(corrupted, states, self.scale, start)

        batches = corrupted.prompt.batches(batch, len(corrupted))
        values = batches.map(run, members.to(corrupted.embeddings.device), len(corrupted)).cpu()
        check_finite(values, lambda _, value: f"the target's likelihood with clean activations at {name} is {value}")
        return values


def _likelihood(prediction: Prediction, scale: Scale) -> Float[Tensor, ""]:
    return likelihood(prediction, prediction.embeddings[None], scale)[0].cpu()


def site_name(adapter: ModelAdapter, what: ByPosition | ByHead | Literal["resid_post"], layer: int) -> str:
    """Return the name of the hook for patches of a kind of activation."""
    (attn_out, mlp_out), (queries, keys) = added_names(layer), queries_keys_names(layer)
    streams = {"resid_pre": adapter.stream_name(layer), "resid_post": adapter.stream_name(layer + 1)}
    heads = {"head_out": head_outputs_name(layer), "head_q": queries, "head_k": keys, "head_v": values_name(layer)}
    return {**streams, "attn_out": attn_out, "mlp_out": mlp_out, **heads}[what]


# ---------------------------------------------------------------------------------------------------------- the grid
@one_at_a_time("clean_cache")
def patch(
    clean_cache: Any,
    corrupted_cache: Any,
    target: TargetLike = None,
    *,
    what: ByPosition | ByHead = "resid_pre",
    tokens: Tokens = None,
    corrupted_tokens: Tokens = None,
    positions: Sequence[SupportsIndex] | None = None,
    layers: Sequence[SupportsIndex] | None = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Grid:
    """Measure the target in the corrupted run, with an activation at a time as in the clean run.

    ``what`` is patched, in a layer at a time:

    - ``resid_pre``, ``attn_out``, ``mlp_out``: the input of the layer, or the output of its attention or MLP; a column
      per position.
    - ``head_out``, ``head_q``, ``head_k``, ``head_v``: the output of a head, its queries, keys or values, at every
      position together; a column per head. Keys and values have fewer heads if queries share them.

    Args:
        clean_cache: the cache of the prompt after which the target is likely.
        corrupted_cache: the cache of a prompt of as many tokens after which the target is less likely, by the same
            model.
        target: the target, as in `attribute`; by default the model's next token after the clean prompt.
        tokens: the ids of the clean prompt; by default they are read off the cached embeddings.
        corrupted_tokens: the ids of the corrupted prompt.
        positions: the patched positions, a column per position; together, if columns are heads.
        layers: the patched layers, a row per layer in ascending order.
        scale: the scale of the grid; ``logit`` and a pair of targets make the logit difference.
        batch: the number of copies of the corrupted prompt that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.
    """
    check_choice("what", what, (*get_args(ByPosition), *get_args(ByHead)))
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    chosen = range(adapter.layers) if layers is None else layers
    rows, by_position = sorted({adapter.check_layer("layer", layer) for layer in chosen}), what in get_args(ByPosition)
    if not rows:
        raise ValueError("layers is empty: name at least one layer")
    adapter.check_points(site_name(adapter, what, layer) for layer in rows)
    clean, corrupted = predictions_of_both(clean_cache, corrupted_cache, target, tokens, corrupted_tokens, scale)
    places = chosen_positions("positions", positions, len(corrupted), "of the prompts")
    with clean.running(), corrupted.running(), torch.no_grad():
        runs = PatchedRuns.of(clean, corrupted, what, rows, scale)
        if by_position:
            columns, labels = tuple(places), tuple(corrupted.written[place] for place in places)
            members = torch.eye(len(corrupted)).bool()[places]
        else:
            columns = tuple(range(runs.activations[rows[0]].shape[1]))
            labels = tuple(f"head {head}" for head in columns)
            members = repeat(torch.eye(len(columns)).bool(), "cell head -> cell pos head", pos=len(corrupted)).clone()
            members[:, [at for at in range(len(corrupted)) if at not in places]] = False
        with working({"forwards": len(rows) * len(columns)}, progress):
            values = torch.stack([runs.patched(layer, members, batch) for layer in rows])
    return Grid(
        title=f"patching {what}: {clean.target_words}",
        values=values,
        labels=labels,
        clean=float(runs.clean_likelihood),
        corrupted=float(runs.corrupted_likelihood),
        forwards=values.numel() + 2,
        layers=tuple(rows),
        columns=columns,
        of_heads=not by_position,
    )


# ------------------------------------------------------------------------------------- patching in the order of scores
@dataclass(frozen=True)
class Search:
    """A search for the fewest patches: ``positions`` in their order, and the share ``restored`` after every patch.

    The search ends when the share reaches ``restore``. ``forwards`` is the number of patched runs, ``exhaustive`` the
    number of runs that patch every position by itself. Runs beyond the last needed run are counted, but not listed.
    """

    positions: tuple[int, ...]
    restored: tuple[float, ...]
    restore: float
    forwards: int
    exhaustive: int

    @property
    def sufficient(self) -> tuple[int, ...] | None:
        """Positions with enough of the loss restored together; None if the whole prompt restores too little."""
        return self.positions if self.restored[-1] >= self.restore else None


@one_at_a_time("clean_cache")
def patch_in_order(
    clean_cache: Any,
    corrupted_cache: Any,
    attribution: Attribution,
    target: TargetLike = None,
    *,
    restore: float | int = 0.9,
    what: ByPosition = "resid_pre",
    layer: SupportsIndex = 0,
    tokens: Tokens = None,
    corrupted_tokens: Tokens = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
) -> Search:
    """Patch more and more positions together, highest scores first, until enough of the loss is restored.

    The caches, ``what``, ``tokens``, ``corrupted_tokens`` and ``scale`` are those of `patch`.

    Args:
        attribution: the attribution of either prompt. Tokens without a score are not patched.
        target: the target, as in `attribute`; by default the attribution's target.
        restore: the share of the corrupted run's loss to restore: 1 is the whole loss. A share that is never reached
            has every position patched.
        layer: the layer of the activation.
        batch: the largest number of runs at once: the search begins with a single run, and doubles the number each
            time, to waste few.
    """
    check_choice("what", what, get_args(ByPosition))
    check_at_least("restore", restore, 0)
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    row = adapter.check_layer("layer", layer)
    adapter.check_points([site_name(adapter, what, row)])
    explained = attribution.target if target is None else target
    clean, corrupted = predictions_of_both(clean_cache, corrupted_cache, explained, tokens, corrupted_tokens, scale)
    check_explains(attribution, clean, corrupted)
    order = attribution.positions[ranked(attribution.scores)].tolist()
    with clean.running(), corrupted.running(), torch.no_grad():
        runs = PatchedRuns.of(clean, corrupted, what, [row], scale)
        low, lost = runs.corrupted_likelihood, runs.clean_likelihood - runs.corrupted_likelihood
        if not lost:
            raise ValueError(NOTHING_LOST)
        members = torch.zeros(len(order), len(corrupted), dtype=torch.bool)
        members[:, order] = torch.ones(len(order), len(order)).tril().bool()
        most, step, restored = corrupted.prompt.batches(batch, len(corrupted)).size, 1, list[float]()
        while len(restored) < len(order) and not any(share >= restore for share in restored):
            values = runs.patched(row, members[len(restored) :][:step], batch)
            restored += ((values - low) / lost).tolist()
            step = min(2 * step, most)
    needed = next((count for count, share in enumerate(restored, 1) if share >= restore), len(restored))
    return Search(tuple(order[:needed]), tuple(restored[:needed]), float(restore), len(restored), len(corrupted))


# --------------------------------------------------------------------------------------------------------- value swaps
@contextmanager
def swap_values(
    cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None
) -> Iterator[Any]:
    """Give the model the values of prompt A at the positions of a layer, in every run inside ``with``.

    ``with`` gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``. Runs
    begin with their first token: a run that continues kept keys and values, as ``generate`` does by default, is
    refused.

    Args:
        cache_a: the cache of the prompt that the values come from.
        cache_b: the cache of the prompt that runs under the swap, by the same model.
        layer: the layer whose value vectors are swapped, in every head.
        positions: the positions, the same in the two prompts; shorter runs are not changed.
        tokens: the ids of prompt B; by default they are read off its cached embeddings.
    """
    adapter = shared_adapter(cache_a, cache_b)
    adapter.check_layer("layer", layer)
    with changing(adapter.model):
        prediction, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
        check_causal(adapter, given)  # with positions left out, others would be swapped
        shorter = min(len(prediction), len(given[EMBED]))
        places = chosen_positions("positions", positions, shorter, "that both prompts have")
        with values_put(prediction, places, given[values_name(layer)][places], layer):
            yield prediction.adapter.cache(prediction.ids[None])
