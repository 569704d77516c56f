"""Activation patching: what comes back of a prediction when clean activations are put into a corrupted run.

The grids are those of `transformer_lens.patching`, cell for cell. But many cells are run at once, and clean activations
are taken from one live run, so that of a cache only what `names_filter` keeps is needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.finite_values import check_finite
from heta_lens._util.options import Batch, check_choice, chosen_positions
from heta_lens._util.progress import working
from heta_lens._util.work_counting import Done
from heta_lens.causal.grid_result import Grid
from heta_lens.causal.prompt_pair import predictions_of_both, shared_adapter
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import added_names, head_outputs_name, queries_keys_names, values_name
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.cached_tokens import Tokens
from heta_lens.prediction.patching_checks import check_reading
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale, likelihood
from heta_lens.prediction.target import TargetLike
from heta_lens.prediction.target_function import check_scale

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
