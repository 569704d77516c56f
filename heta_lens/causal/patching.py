"""What patching does, by layer and by position or head: in the layout of TransformerLens' own patching grids."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from heta_lens._util.python import warn
from heta_lens._util.target_kinds import described
from heta_lens._util.work import Done, working
from heta_lens.attribution import Attribution
from heta_lens.metrics.evidence import ranked
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, added_names, head_outputs_name, pattern_name, queries_keys_names, values_name
from heta_lens.model.lock import changing, one_at_a_time
from heta_lens.plots.figures import exports_of, patch_grid
from heta_lens.plots.page import heat
from heta_lens.prediction.activations import Activations
from heta_lens.prediction.checks import Tokens
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.patching import check_reading, values_put
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale


class Patch(NamedTuple):
    """A cell: what was patched, and how likely the target was then, between corrupted (0) and clean (1)."""

    layer: int
    column: int
    """The position, or the head."""
    label: str
    value: float
    restored: float


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """How likely the target is after each patch, in nats or on the chosen scale.

    ``clean`` is how likely it is in the clean run, ``corrupted`` in the corrupted one. ``layers`` and ``columns``
    (positions; heads, if it is a grid ``of_heads``) say what was patched, all from the first on if none are named, and
    ``labels`` what is written over the columns. ``forwards`` is what it cost.
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
        """The share of what was lost that each patch brings back: 0 is nothing, 1 all of it; NaN if none was lost."""
        lost = self.clean - self.corrupted
        return (self.values - self.corrupted) / (lost or nan)

    def top(self, k: int = 10) -> list[Patch]:
        """The k patches that bring back most, best first."""
        check_at_least("k", k, 1, whole=True)
        order = self.values.flatten().argsort(descending=self.clean >= self.corrupted, stable=True)[:k].tolist()
        patches = self._patches()
        return [patches[place] for place in order]

    def check_something_lost(self) -> None:
        """Refuse a grid of which nothing can be restored."""
        if self.clean == self.corrupted:
            raise ValueError("nothing was lost: the target is as likely in the clean run as in the corrupted one")

    def to_frame(self) -> pd.DataFrame:
        """One row per patch."""
        return pd.DataFrame(self._patches())

    def _patches(self) -> list[Patch]:
        both = zip(self.values.tolist(), self.restored.tolist(), strict=True)
        return [
            Patch(layer, column, label, value, restored)
            for layer, rows in zip(self.layers, both, strict=True)
            for column, label, value, restored in zip(self.columns, self.labels, *rows, strict=True)
        ]

    def plot(self) -> View:
        """A heat map of what was restored, layer 0 on top as TransformerLens has it."""
        self.check_something_lost()
        names = [f"layer {layer}" for layer in self.layers]
        places = () if self.of_heads else self.columns
        view = heat(self.title, names, self.labels, self.restored, f"restored: {self._range}", places)
        figure = partial(patch_grid, self.title, self.restored, self.layers, self.labels, places, self._range)
        return replace(view, exports=exports_of(figure))

    def __repr__(self) -> str:
        if self.clean == self.corrupted:
            return f"{self.title}: nothing was lost, {self.clean:.4g} in both runs"
        best = ", ".join(f"layer {patch.layer} {self._named(patch)} {patch.restored:.2f}" for patch in self.top(3))
        return f"{self.title}: {self._range}; most restored by {best}"

    def _named(self, patch: Patch) -> str:
        """By its label, and its place where others are called the same."""
        return repr(patch.label) + (f" at {patch.column}" if self.labels.count(patch.label) > 1 else "")

    @property
    def _range(self) -> str:
        return f"0 is {self.corrupted:.4g}, 1 is {self.clean:.4g}"


# --------------------------------------------------------------------------------------------------------- prompt pair
# The same target after two prompts; refused where these cannot be compared.


def shared_adapter(cache: Any, other_cache: Any) -> ModelAdapter:
    adapter, other = ModelAdapter.of(cache), ModelAdapter.of(other_cache)
    if other.model is not adapter.model:
        raise ValueError("the two caches are of two models: take both from the same one")
    return adapter


@contextmanager
def named_as(name: str) -> Iterator[None]:
    """Errors about ``tokens=`` name it as the caller does."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("tokens=", f"{name}=")) from None


def check_attribution(attribution: Any) -> None:
    if not isinstance(attribution, Attribution):
        raise TypeError(
            f"expected an Attribution of one token, got {type(attribution).__name__}: "
            "pass what attribute returns, one at a time"
        )


def check_explains(attribution: Attribution, prediction: Prediction, other: Prediction | None = None) -> None:
    """Refuse an attribution that explains neither of these contexts."""
    if not any(_explains(attribution, context) for context in (prediction, other) if context is not None):
        where = "neither prompt" if other else "another prompt than the cache, or of another position="
        of, cached = (shorten(text, 60, placeholder=" …") for text in (attribution.text, prediction.located[0]))
        target = described(attribution.target, attribution.target_text)
        raise ValueError(
            f"this attribution is of {where}: it explains {target} by {of!r}, and the cache is of "
            f"{cached!r}: give the cache that it was made from"
        )


def _explains(attribution: Attribution, prediction: Prediction) -> bool:
    text, _ = prediction.located
    return attribution.text == text and torch.equal(prediction.ids.cpu()[attribution.positions], attribution.ids)


def predictions_of_both(
    clean_cache: Any, corrupted_cache: Any, target: TargetLike, tokens: Tokens, corrupted_tokens: Tokens
) -> tuple[Prediction, Prediction]:
    """The same target after the clean and the corrupted prompt."""
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    with named_as("corrupted_tokens"):
        corrupted = Prediction.from_cache(corrupted_cache, clean.target, tokens=corrupted_tokens)
    if len(clean) != len(corrupted):
        counts = f"the corrupted prompt has {len(corrupted)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of the same length")
    return clean, corrupted


# ------------------------------------------------------------------------------------------------- activation patching
# Activation patching: what comes back of a prediction when clean activations are put into a corrupted run.
#
# The grids are those of `transformer_lens.patching`, cell for cell. But many cells are run at once, and clean
# activations
# are taken from one live run, so that of a cache only what `names_filter` keeps is needed.


ByPosition: TypeAlias = Literal["resid_pre", "attn_out", "mlp_out"]
ByHead: TypeAlias = Literal["head_out", "head_q", "head_k", "head_v"]

ELSEWHERE = {
    "resid_post": "a layer's is the resid_pre of the next",
    "z": "called head_out here",
    "q": "called head_q here",
    "k": "called head_k here",
    "v": "called head_v here",
    "head_pattern": "some bridges show it after it was used: patch head_q and head_k",
}


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
    """How likely the target is in the corrupted run, with one activation at a time as the clean run has it.

    ``what`` is patched, in one layer at a time:

    - ``resid_pre``, ``attn_out``, ``mlp_out``: what enters it, or what attention or MLP adds; a column per position.
    - ``head_out``, ``head_q``, ``head_k``, ``head_v``: what a head mixed, its queries, keys or values, at all positions
      together; a column per head. Keys and values have fewer heads where queries share them.

    Args:
        clean_cache: of the prompt after which the target is likely.
        corrupted_cache: of a prompt of as many tokens after which it is less so, by the same model.
        target: as `attribute` is given it; left out, it is what the model says after the clean prompt.
        what: the kind of activation.
        tokens: the clean ids that were cached; without them they are read off the cached embeddings.
        corrupted_tokens: the same of the corrupted prompt.
        positions: the only ones that are patched, each by itself; together, where columns are heads.
        layers: the only ones that are patched, and that have rows, from the first up.
        scale: of the grid; ``logit`` and a pair for a target make the logit difference.
        batch: how many copies of the corrupted prompt run at once.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    check_choice("what", what, (*get_args(ByPosition), *get_args(ByHead)), ELSEWHERE)
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    rows, by_position = _chosen_layers(layers, adapter), what in get_args(ByPosition)
    adapter.check_points(site_name(adapter, what, layer) for layer in rows)
    clean, corrupted = predictions_of_both(clean_cache, corrupted_cache, target, tokens, corrupted_tokens)
    check_scale(clean.target, scale, "log_prob")
    places = chosen_positions("positions", positions, len(corrupted), "of the prompts")
    with clean.running(), corrupted.running(), torch.no_grad():
        runs = Runs.of(clean, corrupted, what, rows, scale)
        columns = runs.positions(places) if by_position else runs.heads(places)
        with working({"forwards": len(rows) * len(columns.labels)}, progress) as work:
            done = partial(work.add, "forwards")
            values = torch.stack([runs.patched(layer, columns.members, batch, done) for layer in rows])
    both = float(runs.clean_likelihood), float(runs.corrupted_likelihood)
    title, cost = f"patching {what}: {clean.target_words}", values.numel() + len(both)
    return Grid(title, values, columns.labels, *both, cost, tuple(rows), columns.places, of_heads=not by_position)


class Columns(NamedTuple):
    """What each cell of a row takes from the clean run, which position or head that is, and what it is called."""

    members: Bool[Tensor, "cell pos *head"]
    places: tuple[int, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of the corrupted prompt into which clean activations are put, and what they are to be compared with."""

    corrupted: Prediction
    names: Mapping[int, str]
    activations: Mapping[str, Float[Tensor, "pos ..."]]
    scale: Scale
    clean_likelihood: Float[Tensor, ""]
    corrupted_likelihood: Float[Tensor, ""]

    @classmethod
    def of(
        cls, clean: Prediction, corrupted: Prediction, what: ByPosition | ByHead, layers: Sequence[int], scale: Scale
    ) -> "Runs":
        """After one run of each prompt; of the clean one the activations are kept."""
        names = {layer: site_name(clean.adapter, what, layer) for layer in layers}
        activations: dict[str, Tensor] = {}

        def note(name: str, live: Tensor) -> None:
            activations[name] = live[0].clone()

        with clean.adapter.hooked([(name, partial(note, name)) for name in names.values()]):
            likely = _whole_run(clean, scale)
        _check_layout(clean.adapter, what, activations)
        return cls(corrupted, names, activations, scale, likely, _whole_run(corrupted, scale))

    def positions(self, places: Sequence[int]) -> Columns:
        members = torch.zeros(len(places), len(self.corrupted), dtype=torch.bool)
        members[range(len(places)), places] = True
        written = self.corrupted.written
        return Columns(members, tuple(places), tuple(written[place] for place in places))

    def heads(self, places: Sequence[int]) -> Columns:
        """Every head, each at all of these positions."""
        count = next(iter(self.activations.values())).shape[1]
        patched = torch.zeros(len(self.corrupted), dtype=torch.bool)
        patched[list(places)] = True
        members = rearrange(patched, "pos -> 1 pos 1") & rearrange(torch.eye(count).bool(), "cell head -> cell 1 head")
        return Columns(members, tuple(range(count)), tuple(f"head {head}" for head in range(count)))

    def patched(
        self, layer: int, members: Bool[Tensor, "cell pos *head"], batch: Batch, done: Done = lambda _: None
    ) -> Float[Tensor, "cell"]:
        """How likely the target is with each cell's clean activations in a run of its own."""
        batches = self.corrupted.prompt.batches(batch, len(self.corrupted))
        run = partial(self._run, self.names[layer], done)
        values = batches.map(run, members.to(self.corrupted.embeddings.device), len(self.corrupted)).cpu()
        check_finite(
            values, lambda _, value: f"the target's likelihood with clean activations at {self.names[layer]} is {value}"
        )
        return values

    def _run(self, name: str, done: Done, members: Bool[Tensor, "copy pos *head"]) -> Float[Tensor, "copy"]:
        start = self._start(
            members
        )  # before the patch is on, since the kept keys and values are to be the corrupted ones
        states = repeat(self.corrupted.embeddings[start:], "pos d -> copy pos d", copy=len(members))
        with self.corrupted.adapter.hooked([(name, partial(_put, members[:, start:], self.activations[name][start:]))]):
            return likelihood(self.corrupted, states, self.scale, done, start)

    def _start(self, members: Bool[Tensor, "copy pos *head"]) -> int:
        """The first position that is patched, since none before it can change, if runs can begin there."""
        first = int(rearrange(members, "copy pos ... -> pos (copy ...)").any(1).nonzero()[0])
        return first if first and self.corrupted.prompt.kept is not None else 0


def _whole_run(prediction: Prediction, scale: Scale) -> Float[Tensor, ""]:
    return likelihood(prediction, prediction.embeddings[None], scale, lambda _: None)[0].cpu()


def _put(
    members: Bool[Tensor, "copy pos *head"],
    clean: Float[Tensor, "pos *head d"],
    live: Float[Tensor, "copy pos *head d"],
) -> Float[Tensor, "copy pos *head d"]:
    return torch.where(rearrange(members, "... -> ... 1").to(live.device), clean.to(live), live)


def site_name(adapter: ModelAdapter, what: ByPosition | ByHead, layer: int) -> str:
    """Where this is put in."""
    (attn_out, mlp_out), (queries, keys) = added_names(layer), queries_keys_names(layer)
    names = {"resid_pre": adapter.stream_name(layer), "attn_out": attn_out, "mlp_out": mlp_out}
    heads = {"head_out": head_outputs_name(layer), "head_q": queries, "head_k": keys, "head_v": values_name(layer)}
    return {**names, **heads}[what]


# --------------------------------------------------------------------------------------------------- what is refused
def _chosen_layers(layers: Sequence[SupportsIndex] | None, adapter: ModelAdapter) -> list[int]:
    if layers is not None and not isinstance(layers, Iterable):
        raise TypeError(f"layers={layers!r} is not a list of layers: write [{layers!r}] for one")
    chosen = {adapter.check_layer("layer", layer) for layer in (range(adapter.layers) if layers is None else layers)}
    if not chosen:
        raise ValueError("layers is empty: name at least one layer")
    return sorted(chosen)


def _check_layout(adapter: ModelAdapter, what: ByPosition | ByHead, activations: Mapping[str, Tensor]) -> None:
    """Models differ in where they keep their heads apart: refuse what is not laid out as expected."""
    axes = 2 if what in get_args(ByPosition) else 3
    for name, activation in activations.items():
        if activation.ndim != axes:
            shape = tuple(activation.shape)
            kind = type(adapter.model).__name__
            raise ValueError(f"{name} of this {kind} is {shape}, not {what} by position")


# ---------------------------------------------------------------------------------------------------- ordered patching
# Attribution as a prior: positions are patched in the order of their scores, until the prediction is back.


@dataclass(frozen=True)
class Search:
    """``positions`` in the order in which they were patched, and the share that was ``restored`` after each.

    The search ends when the share reaches ``restore``. ``forwards`` is how many patched runs it took, ``exhaustive``
    how many it takes to patch every position by itself. A few runs may have been made beyond the last that was needed:
    they are counted, but not listed.
    """

    positions: tuple[int, ...]
    restored: tuple[float, ...]
    restore: float
    forwards: int
    exhaustive: int

    @property
    def sufficient(self) -> tuple[int, ...] | None:
        """The positions that restored enough together; None, if not even all of them did."""
        return self.positions if self.restored[-1] >= self.restore else None

    @property
    def saved(self) -> int:
        """Runs that were not needed."""
        return self.exhaustive - self.forwards


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
    """Patch positions together, one more at a time, highest scores first, until enough of what was lost is back.

    Args:
        clean_cache: as `patch` has it.
        corrupted_cache: as `patch` has it.
        tokens: as `patch` has them.
        corrupted_tokens: as `patch` has them.
        scale: as `patch` has it.
        attribution: of either prompt. Tokens that were left out of it are not patched.
        target: as `attribute` is given it; left out, it is the attribution's.
        restore: how much has to come back, as a share of what the corrupted run has lost: 1 is all. A share that is
            never reached has all positions patched.
        what: the kind of activation that is patched.
        layer: where it is patched.
        batch: at most how many runs are made at once: first one, then twice as many each time, so that few are wasted.
    """
    check_choice("what", what, get_args(ByPosition))
    check_at_least("restore", restore, 0)
    check_attribution(attribution)
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    row = adapter.check_layer("layer", layer)
    adapter.check_points([site_name(adapter, what, row)])
    explained = attribution.target if target is None else target
    clean, corrupted = predictions_of_both(clean_cache, corrupted_cache, explained, tokens, corrupted_tokens)
    check_scale(clean.target, scale, "log_prob")
    order = _order(attribution, clean, corrupted)
    with clean.running(), corrupted.running(), torch.no_grad():
        runs = Runs.of(clean, corrupted, what, [row], scale)
        restored = _restored(runs, row, order, float(restore), batch)
    needed = next((count for count, share in enumerate(restored, 1) if share >= restore), len(restored))
    return Search(tuple(order[:needed]), tuple(restored[:needed]), float(restore), len(restored), len(corrupted))


def _restored(runs: Runs, layer: int, order: Sequence[int], restore: float, batch: Batch) -> list[float]:
    """The share restored by the first position, the first two and so on, for as many as were run."""
    lost = runs.clean_likelihood - runs.corrupted_likelihood
    if not lost:
        raise ValueError("nothing was lost: the target is as likely in the clean run as in the corrupted one")
    members = torch.zeros(len(order), len(runs.corrupted), dtype=torch.bool)
    members[:, order] = torch.ones(len(order), len(order)).tril().bool()
    most, step, restored = runs.corrupted.prompt.batches(batch, len(runs.corrupted)).size, 1, []
    while len(restored) < len(order) and not any(share >= restore for share in restored):
        values = runs.patched(layer, members[len(restored) :][:step], batch)
        restored += ((values - runs.corrupted_likelihood) / lost).tolist()
        step = min(2 * step, most)
    return restored


def _order(attribution: Attribution, clean: Prediction, corrupted: Prediction) -> list[int]:
    """Positions by their scores, highest first, of equal ones the first in the text."""
    check_explains(attribution, clean, corrupted)
    return attribution.positions[ranked(attribution.scores)].tolist()


# ---------------------------------------------------------------------------------------------------------- value swap
# Value swaps between two prompts: under one, any method explains what the patched model says.


class Swap(AbstractContextManager[Any]):
    """Values that are swapped inside ``with``, and nowhere else; a warning says so, if it never was begun."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Any]]) -> None:
        self._begin = begin
        self._under_way: AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        if self._under_way is not None:
            raise RuntimeError("this swap was begun before: call swap_values again for another")
        self._under_way = self._begin()
        return self._under_way.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        assert self._under_way is not None
        return self._under_way.__exit__(*error)

    def __del__(self) -> None:
        if getattr(self, "_under_way", True) is None:
            warn(UNUSED)

    def __repr__(self) -> str:
        return UNUSED if self._under_way is None else "a swap of values that was begun"


UNUSED = "swap_values has changed nothing: it works inside `with swap_values(...) as cache:`"


def swap_values(cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None) -> Swap:
    """Inside ``with``, the model has the values of prompt A at these positions of a layer, in every run.

    Gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``. Runs begin
    with their first token: one that continues kept keys and values, as ``generate`` does by default, is
    refused.

    Args:
        cache_a: where the values come from, taken as they are there.
        cache_b: of the prompt that is to be run under the swap, by the same model.
        layer: whose value vectors are swapped, of all heads.
        positions: the same in both prompts; runs that do not reach them are as they were.
        tokens: the ids of prompt B; without them they are read off its cached embeddings.
    """
    return Swap(lambda: _swapped(cache_a, cache_b, layer, positions, tokens))


@contextmanager
def _swapped(cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], tokens: Tokens) -> Iterator[Any]:
    adapter = shared_adapter(cache_a, cache_b)
    adapter.check_layer("layer", layer)
    with changing(adapter.model):
        prediction, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
        pattern = pattern_name(layer)
        if pattern in given and given[pattern].shape[-1] != len(given[EMBED]):
            raise ValueError("cache_a holds a part of its prompt: take it of the whole, without pos_slice")
        shorter = min(len(prediction), len(given[EMBED]))
        places = chosen_positions("positions", positions, shorter, "that both prompts have")
        with values_put(prediction, places, given[values_name(layer)][places], layer):
            yield prediction.adapter.cache(prediction.ids[None])
