"""Components: the heads and MLPs through which a change of tokens changes the target's number.

1. Screening: ``(a_clean - a_changed) · gradient`` estimates the effect of every output a of a head or an MLP, at every
   position, with the gradient of the run that is patched: the changed run to restore, the clean run to knock out. The
   output of a head is its weighted values, so W_O and a norm behind it, which belong to the head, are in the gradient.
2. Verification: the components with the highest estimates are patched, one by one, and then together.
3. The estimates of the patched heads are split over the positions they read, which gives a route to the last token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsIndex, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_at_least, check_choice, check_count
from heta_lens._util.python import versions
from heta_lens._util.work import count, working
from heta_lens.causal.changes import Change, changed_embeddings
from heta_lens.causal.component_results import Components, Direction
from heta_lens.model.batching import Batches
from heta_lens.model.hooks import head_outputs_name, pattern_name, values_name
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.gradients import check_gradients, likelihood
from heta_lens.prediction.patching import Site, check_reading, noted, patched, site_name
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale


@one_at_a_time("cache")
def components(
    cache: Any,
    positions: Iterable[int] | None = None,
    target: TargetLike = None,
    *,
    change: Change = "zero",
    direction: Direction = "restore",
    both: bool = False,
    steps: int = 1,
    verify: int = 32,
    share: float | int = 0.9,
    seed: int = 0,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Components:
    """Find the heads and MLPs through which a change of these tokens changes the target's number.

    Effects are in units of that number, above 0 for components that support the target. Components in series share
    their effects, so their estimates are never added up; the most promising ones are patched together instead. The
    gradient that screens them misses jumps, as of a router. ``target``, ``position``, ``tokens``: as in `attribute`.

    Args:
        positions: the changed tokens; by default, those in which a counterfactual prompt differs.
        change: the replacement: a mask (``zero``, ``mean``, ``vocab_mean``, ``pad``, ``space``, a token id or a
            vector), ``resample`` for tokens drawn from the model's predictions, a list of ids, one per position, or
            the ids of a counterfactual prompt of as many tokens.
        direction: ``restore`` puts clean outputs into the changed run, ``knock_out`` changed outputs into the clean
            run.
        both: patch the components in the other direction too.
        steps: the number of gradients in the mean, with embeddings evenly spaced from the patched run to the other.
        verify: the number of components to patch, those with the highest estimates.
        share: the share of the change to reach by patching components together.
        seed: the seed of ``change="resample"``.
        scale: the quantity that changes, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: the number of copies of the context that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.

    Example:
        >>> found = heta_lens.causal.components(cache, [7], tokens=tokens)
        >>> found.route_in_words
        "Route: ' box' (7) → L2H3 at the last token; it restores 97%."
    """
    check_choice("direction", direction, get_args(Direction))
    for name, value in {"steps": steps, "verify": verify}.items():
        check_count(name, value)
    check_at_least("share", share, 0)
    check_reading(scale, batch)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "log_prob")
    names = hook_points(prediction)
    check_gradients(prediction)
    prediction.check_graph_fits()
    with prediction.running(), working({"forwards": steps + (2 + both) * verify + 4}, progress) as work:
        places, changed, described = changed_embeddings(prediction, positions, change, seed)
        later = torch.arange(len(prediction)) > min(places)
        later[places] = False
        if not later[-1]:
            raise ValueError("the last token is changed, and none after it can carry the change: omit it (positions=)")
        if torch.equal(changed, prediction.embeddings):
            raise ValueError("the change leaves these tokens as they are: give another change=, seed= or positions=")
        pair = two_runs(prediction, names, changed, direction, steps, scale, batch)
        estimates = pair.estimates()
        found, effects = verified(pair, direction, highest(pair, estimates, later, verify))
        growing = [range(count + 1) for count in range(int((pair.sign * effects > 0).sum()))]

        def shares(some: slice) -> list[float]:
            return (pair.gains(direction, found, growing[some]) / pair.total).tolist()

        together = shares_in_order(shares, len(growing), share, pair.batches.size)
        opposite = effects * torch.nan
        if both:
            (other,) = {*get_args(Direction)} - {direction}
            opposite = pair.gains(other, found, [[row] for row in range(len(found))])
        options = {"steps": steps, "verify": verify, "share": float(share), "seed": seed}
        result = Components(
            tokens=prediction.written,
            positions=tuple(places),
            change=described,
            answer=prediction.target_words,
            quantity="value" if callable(prediction.target) else scale,
            clean=pair.clean_value,
            changed=pair.changed_value,
            direction=direction,
            estimates=estimates,
            heads_per_layer=pair.heads,
            found=found,
            effects=effects,
            opposite=opposite,
            together=tuple(together),
            sources=split_by_source(pair, found),
            route_share=0.0,
            options={**options, "model": prediction.prompt.model_facts, "versions": versions()},
            forwards=0,
        )
        route = result.rows_of_route
        on_route = float(pair.gains(direction, found, [route])) / pair.total if route else 0.0
        return replace(result, route_share=on_route, forwards=work.ran["forwards"])


def hook_points(prediction: Prediction) -> list[list[str]]:
    """Return for every layer the hook point of its heads and, if there is one, of its MLP."""
    kinds: tuple[Site, ...] = ("head_out", "mlp_out")[: 1 if getattr(prediction.model.cfg, "attn_only", False) else 2]
    names = [[site_name(prediction.adapter, kind, layer) for kind in kinds] for layer in range(prediction.layers)]
    prediction.adapter.check_points([name for layer in names for name in layer])
    return names


# ------------------------------------------------------------------------------------------------------------ two runs
@dataclass(frozen=True, eq=False)
class Pair:
    """The clean and the changed run: outputs of components by hook point, and the target's number.

    ``gradients`` are those of the number by the outputs in the run that is patched. ``names`` has for every layer the
    hook point of its heads and, if there is one, of its MLP.
    """

    prediction: Prediction
    names: Sequence[Sequence[str]]
    embeddings: Float[Tensor, "pos d"]  # with the change
    clean: Mapping[str, Float[Tensor, "1 pos ..."]]
    changed: Mapping[str, Float[Tensor, "1 pos ..."]]
    clean_value: float
    changed_value: float
    gradients: Mapping[str, Float[Tensor, "pos ..."]]
    read: Callable[[Float[Tensor, "copy vocab"]], Float[Tensor, "copy"]]
    batches: Batches

    @property
    def total(self) -> float:
        """The change of the target's number, which the components share."""
        return self.clean_value - self.changed_value

    @property
    def sign(self) -> int:
        return 1 if self.total > 0 else -1

    @property
    def heads(self) -> int:
        """The number of heads, and the column of the MLP."""
        return self.clean[self.names[0][0]].shape[2]

    def estimates(self) -> Float[Tensor, "layer pos column"]:
        """Return ``(a_clean - a_changed) · gradient`` of every component."""

        def products(name: str) -> Float[Tensor, "pos column"]:
            change, gradient = (self.clean[name] - self.changed[name])[0], self.gradients[name]
            return (change.to(gradient) * gradient).sum(-1).reshape(len(change), -1)

        return torch.stack([torch.cat([products(name) for name in layer], -1) for layer in self.names]).cpu()

    def gains(
        self, direction: Direction, found: Int[Tensor, "found 3"], groups: Sequence[Sequence[int]]
    ) -> Float[Tensor, "group"]:
        """Return what patching each group of components together restores, or takes away."""
        cells = dict[str, Tensor]()
        for group, rows in enumerate(groups):
            for layer, position, column in found[list(rows)].tolist():
                name = self.names[int(layer)][int(column == self.heads)]
                none = torch.zeros(len(groups), *self.clean[name].shape[1:-1], dtype=torch.bool)
                marked = cells.setdefault(name, none)[group, position]
                (marked if column == self.heads else marked[column]).fill_(True)
        if direction == "knock_out":
            return (self.clean_value - patched(self.prediction, cells, self.changed, self.read, self.batches)).cpu()
        first = int((self.embeddings != self.prediction.embeddings).any(-1).nonzero()[0])
        run = {"states": self.embeddings, "clean_before": first}
        return (patched(self.prediction, cells, self.clean, self.read, self.batches, **run) - self.changed_value).cpu()


def two_runs(
    prediction: Prediction,
    names: Sequence[Sequence[str]],
    changed: Float[Tensor, "pos d"],
    direction: Direction,
    steps: int,
    scale: Scale,
    batch: Batch,
) -> Pair:
    """Run the prompt with and without the change, and differentiate the run that is patched, or on the way from it."""
    clean, every, restores = prediction.embeddings, [name for layer in names for name in layer], direction == "restore"
    base, other = (changed, clean) if restores else (clean, changed)
    path = base + torch.arange(steps).to(base)[:, None, None] / steps * (other - base)
    value, outputs, gradients = differentiated(prediction, every, path, scale, batch)
    other_outputs = noted(prediction, every, other[None])
    pair = Pair(
        prediction,
        names,
        changed,
        *((other_outputs, outputs) if restores else (outputs, other_outputs)),
        float(prediction.read(prediction.logits, scale)),
        value if restores else float(likelihood(prediction, changed[None], scale)),
        gradients,
        partial(prediction.read, scale=scale),
        prediction.batches(batch),
    )
    if pair.total == 0:
        raise ValueError(f"nothing changes: the target's number is {pair.clean_value:.4g} in both runs")
    return pair


def highest(
    pair: Pair, estimates: Float[Tensor, "layer pos column"], later: Bool[Tensor, "pos"], most: int
) -> Int[Tensor, "found 3"]:
    """Return layer, position and column of the highest estimates at the ``later`` positions."""
    check_finite(estimates.flatten(), "the estimate of component {} is {}".format)
    ranked = torch.where(later[:, None], pair.sign * estimates, -torch.inf).flatten().sort(descending=True, stable=True)
    chosen = ranked.indices[ranked.values > -torch.inf][:most]
    return torch.stack(torch.unravel_index(chosen, estimates.shape), 1)


def verified(
    pair: Pair, direction: Direction, found: Int[Tensor, "found 3"]
) -> tuple[Int[Tensor, "found 3"], Float[Tensor, "found"]]:
    """Patch every component alone, and return them with their effects, largest first."""
    effects = pair.gains(direction, found, [[row] for row in range(len(found))])
    check_finite(effects, lambda row, value: f"the effect of component {found[row].tolist()} is {value}")
    order = (pair.sign * effects).argsort(descending=True, stable=True)
    return found[order], effects[order]


def shares_in_order(
    shares: Callable[[slice], list[float]], most: int, enough: float | int, at_once: int
) -> list[float]:
    """Return the share after the first 1, 2, … patches, until one is ``enough``.

    ``shares`` runs a slice of these counts at a time, twice as many as the last time.
    """
    found, step = list[float](), 1
    while len(found) < most and not any(share >= enough for share in found):
        found += shares(slice(len(found), len(found) + step))
        step = min(2 * step, at_once)
    needed = next((count for count, share in enumerate(found, 1) if share >= enough), len(found))
    return found[:needed]


def differentiated(
    prediction: Prediction, names: Sequence[str], path: Float[Tensor, "step pos d"], scale: Scale, batch: Batch
) -> tuple[float, dict[str, Float[Tensor, "1 pos ..."]], dict[str, Float[Tensor, "pos ..."]]]:
    """Return the target's number and the outputs where a path begins, and the mean gradient by the outputs.

    The gradients are by zeros that are added, because several bridges hand their hooks a copy.
    """
    n, values, outputs = len(prediction), list[float](), dict[str, Tensor]()

    def gradients(embeddings: Float[Tensor, "some pos d"]) -> Float[Tensor, "some pos all"]:
        added = dict[str, Tensor]()

        def add(name: str, live: Float[Tensor, "some longer ..."]) -> Float[Tensor, "some longer ..."]:
            outputs.setdefault(name, live[:1, :n].detach().clone())
            added[name] = torch.zeros_like(live[:, :n]).requires_grad_()
            return torch.cat([live[:, :n] + added[name], live[:, n:]], 1)

        states = embeddings.detach().requires_grad_()  # as backward hooks of the user expect of what enters a module
        with prediction.hooked([(name, partial(add, name)) for name in names]):
            likelihoods = prediction.read(prediction.rerun().logits(states), scale)
        values.extend(likelihoods.tolist())
        connected = likelihoods.sum() + sum(each[:0].sum().to(likelihoods) for each in added.values())
        count("backwards", len(embeddings))
        found = torch.autograd.grad(connected, [added[name] for name in names])
        return torch.cat([each.flatten(2).to(embeddings) for each in found], -1)

    mean = prediction.batches(batch, products=True).map(gradients, path, n).mean(0)
    parts = mean.split([outputs[name][0, 0].numel() for name in names], -1)
    slopes = {name: part.reshape(outputs[name].shape[1:]) for name, part in zip(names, parts, strict=True)}
    return values[0], outputs, slopes


# ------------------------------------------------------------------------------------------- where heads took it from
def split_by_source(pair: Pair, found: Int[Tensor, "found 3"]) -> Float[Tensor, "found pos 2"]:
    """Split the estimates of heads over source positions, into a part of the values and a part of the pattern.

    The change of a head's output, ``Σ_s A_s v_s - A'_s v'_s``, is ``Σ_s A'_s (v_s - v'_s)`` by the values and
    ``Σ_s (A_s - A'_s)(v_s - m)`` by the pattern, with A' and v' of the changed run. The differences of a pattern add up
    to 0, so every reference m gives the same sum and another split. Here m is what the head reads in the changed run
    instead: the mean of v' under A'. (Under the clean mean, a head that reads a single token would take nothing from
    it.) The parts of all positions add up to the estimate, less what an attention sink outside the context took.
    """
    sources = pair.embeddings.new_zeros(len(found), len(pair.prediction), 2, device="cpu")
    rows = found[:, 2] < pair.heads
    heads = found[rows].tolist()
    if not heads:
        return sources
    (pattern, values), (other_pattern, other_values) = (
        attended(pair, heads, embeddings) for embeddings in (pair.prediction.embeddings, pair.embeddings)
    )
    gradient = torch.stack([pair.gradients[head_outputs_name(layer)][place, head] for layer, place, head in heads])
    mean = torch.einsum("hs, hsd -> hd", other_pattern / other_pattern.sum(-1, keepdim=True), other_values)
    by_values = other_pattern * torch.einsum("hsd, hd -> hs", values - other_values, gradient)
    by_pattern = (pattern - other_pattern) * torch.einsum("hsd, hd -> hs", values - mean[:, None], gradient)
    sources[rows] = torch.stack([by_values, by_pattern], -1).to(sources)
    return sources


@torch.no_grad()
def attended(
    pair: Pair, heads: Sequence[Sequence[int]], embeddings: Float[Tensor, "pos d"]
) -> tuple[Float[Tensor, "head source"], Float[Tensor, "head source d_head"]]:
    """Return the patterns of heads at given positions, and the values of the heads' groups."""
    n, numbered = len(embeddings), [*enumerate(heads)]
    patterns, values = embeddings.new_zeros(len(heads), n), list[Any](heads)

    def note(row: int, place: int, head: int, live: Float[Tensor, "1 head query key"]) -> None:
        patterns[row] = live[0, head, place, :n].to(patterns)

    def note_values(row: int, head: int, live: Float[Tensor, "1 longer group d_head"]) -> None:
        values[row] = live[0, :n, head * live.shape[2] // pair.heads].to(patterns)

    hooks = [(pattern_name(layer), partial(note, row, place, head)) for row, (layer, place, head) in numbered]
    hooks += [(values_name(layer), partial(note_values, row, head)) for row, (layer, _, head) in numbered]
    with pair.prediction.hooked(hooks):
        pair.prediction.rerun().logits(embeddings[None])
    return patterns, torch.stack(values)
