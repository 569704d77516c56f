"""Patched runs: activations of other runs put in at layers, positions and heads; and the effects of patching tokens.

`noted` reads the activations of a run, and `patched` puts them into others. All of `heta_lens.causal`, causal tracing
and the app's changes run through these two.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_choice, check_count, chosen_positions
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.hooks import (
    BatchHook,
    Replacing,
    added_names,
    head_outputs_name,
    pattern_name,
    put_where,
    queries_keys_names,
    stream_name,
    values_name,
    values_names,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.coalitions import removed
from heta_lens.prediction.masking import Mask, ablated, check_mask, mask_vector
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale, check_scale

# ------------------------------------------------------------------------------------------------------ patched runs
Site: TypeAlias = Literal["resid_pre", "resid_post", "attn_out", "mlp_out", "head_out", "head_q", "head_k", "head_v"]


def site_name(adapter: ModelAdapter, site: Site, layer: int) -> str:
    """Name the hook point of a kind of activation in a layer."""
    (attn_out, mlp_out), (queries, keys) = added_names(layer), queries_keys_names(layer)
    after = layer + 1 if adapter.reads else adapter.layers  # an activation may be read where a block ends
    streams = {"resid_pre": adapter.stream_name(layer), "resid_post": stream_name(layer + 1, after)}
    heads = {"head_out": head_outputs_name(layer), "head_q": queries, "head_k": keys, "head_v": values_name(layer)}
    return {**streams, "attn_out": attn_out, "mlp_out": mlp_out, **heads}[site]


def cells_of_heads(heads: int, positions: Sequence[int], n: int) -> Bool[Tensor, "head pos head"]:
    """Return a copy for each head, with the cells of this head at all given positions."""
    cells = torch.zeros(heads, n, heads, dtype=torch.bool)
    cells[:, positions] = torch.eye(heads).bool()[:, None]
    return cells


@torch.no_grad()
def noted(
    prediction: Prediction,
    names: Iterable[str],
    states: Float[Tensor, "copy pos d"] | None = None,
    start: int = 0,
    positions: slice = slice(None),
) -> dict[str, Float[Tensor, "copy pos ..."]]:
    """Return activations by hook point, in a run from ``start`` on with these embeddings, by default the clean ones."""
    embeddings = prediction.embeddings[None, start:] if states is None else states
    length, activations = embeddings.shape[1], dict[str, Tensor]()

    def note(name: str, live: Float[Tensor, "copy longer ..."]) -> None:
        activations[name] = live[:, :length][:, positions].clone()

    with prediction.hooked([(name, partial(note, name)) for name in names]):
        prediction.rerun(start, read=[start + length - 1]).logits(embeddings)
    return activations


def patched(
    prediction: Prediction,
    cells: Mapping[str, Bool[Tensor, "copy pos *head"]],
    activations: Mapping[str, Float[Tensor, "1 pos ..."]],
    read: Callable[[Float[Tensor, "some vocab"]], Float[Tensor, "some *read"]],
    batches: Batches,
    *,
    states: Float[Tensor, "pos d"] | None = None,
    layer: int | None = None,
    clean_before: int = 0,
) -> Float[Tensor, "copy *read"]:
    """Apply ``read`` to the logits of copies of a run with activations of another run, as `noted` returns them.

    ``cells`` mark by hook point the patched positions of every copy, or the heads at positions. The cells of a copy are
    patched together, also at several hook points; a copy per cell patches them one by one.

    ``states`` are the embeddings of the run without patches or, with a ``layer``, the layer's input; clean by default,
    or only ``clean_before`` a position. Blocks below the layer do not run. What is clean before the first patched
    position does not run either, if the model can continue.
    """
    unpatched = prediction.states(layer) if states is None else states
    copies = len(next(iter(cells.values())))

    def run(rows: Int[Tensor, "some"]) -> Float[Tensor, "some *read"]:
        chosen = {name: marked[rows] for name, marked in cells.items()}
        clean = len(prediction) if states is None else clean_before
        start = min(clean, first_position(chosen.values(), prediction)) if clean else 0
        hooks = {name: put_where(each[:, start:], activations[name][:, start:]) for name, each in chosen.items()}
        begun = repeat(unpatched[start:], "pos d -> copy pos d", copy=len(rows))
        return read(logits_with(prediction, hooks, begun, start, layer))

    return batches.map(run, torch.arange(copies), len(prediction))


def first_position(cells: Iterable[Bool[Tensor, "copy pos *head"]], *predictions: Prediction) -> int:
    """Return the first position with a cell, or the last of all; 0 if runs of these predictions cannot begin later."""
    marked = torch.stack([each.any(0).reshape(each.shape[1], -1).any(1) for each in cells]).any(0)
    first = min(marked.nonzero().flatten().tolist(), default=len(marked) - 1)
    return first if first and all(each.resumes for each in predictions) else 0


@torch.no_grad()
def logits_with(
    prediction: Prediction,
    hooks: Mapping[str, Replacing],
    states: Float[Tensor, "copy pos d"],
    start: int = 0,
    layer: int | None = None,
) -> Float[Tensor, "copy vocab"]:
    """Return the logits of copies that begin at ``start`` with these states, under hooks, which begin there too."""
    rerun, later = prediction.rerun(start, layer=layer), dict(hooks)
    if rerun.site in later:  # where the rerun puts in the states
        states = later.pop(rerun.site)(states)
    if layer:
        prediction.prompt.why_not_alone()  # is measured without the hooks, as `first_position` measures the prefix
    with prediction.hooked(list(later.items())):
        return rerun.logits(states)


def values_put(
    prediction: Prediction, positions: Sequence[int], values: Float[Tensor, "pos ..."], layer: int
) -> AbstractContextManager[None]:
    """Give tokens other values for the length of a block, in every run that reaches the tokens."""
    cells = torch.zeros(1, len(values), dtype=torch.bool)
    cells[:, positions] = True
    put = put_where(cells, values[None])
    hooks = [(values_name(layer), BatchHook(put)), (pattern_name(layer), BatchHook(_refuse_continued))]
    return prediction.hooked(hooks)


def _refuse_continued(pattern: Float[Tensor, "copy head query key"]) -> None:
    """Refuse a run that continues kept keys and values, because the first position is unknown."""
    if pattern.shape[-2] < pattern.shape[-1]:
        raise RuntimeError(
            "a run continued kept keys and values, so the positions at which to put values are unknown: run the whole "
            "text anew, with use_past_kv_cache=False"
        )


# ---------------------------------------------------------------------------------------------- effects of patches
How: TypeAlias = Literal["edge_patch", "resid_patch", "input", "delete", "resample"]
EDITS = ("delete", "resample")  # changes of the text
DRAWS = 3  # of a resampled text
Patterns: TypeAlias = Literal["frozen", "recomputed"]


def check_reading(scale: Scale, batch: Batch) -> None:
    """Refuse an unknown scale or batch size."""
    check_choice("scale", scale, get_args(Scale))
    if not isinstance(batch, str) or batch != "auto":
        check_count("batch", batch)


def check_patch(
    prediction: Prediction,
    how: How,
    mask: Mask,
    layer: int | None,
    reference: Prediction | None,
    patterns: Patterns,
) -> None:
    if not isinstance(prediction, Prediction):
        way_out = "heta_lens.Prediction.from_cache(cache, target, tokens=tokens) makes one"
        raise TypeError(f"expected a Prediction, got {type(prediction).__name__}: {way_out}")
    check_choice("how", how, get_args(How))
    check_choice("patterns", patterns, get_args(Patterns))
    check_mask("mask", mask)
    if (how == "resid_patch") != (layer is not None):
        raise ValueError(f"layer={layer!r} with how={how!r}: only how='resid_patch' has a layer, and needs one")
    if how != "edge_patch" and patterns != "frozen":
        raise ValueError(f"patterns={patterns!r} is for how='edge_patch', not for how={how!r}")
    masked = isinstance(mask, Tensor) or mask != "zero"
    if how in EDITS and (masked or reference is not None):
        raise ValueError(f"how={how!r} changes the text, and puts nothing in: leave out mask= and the reference")
    if how == "edge_patch" and patterns == "frozen":
        prediction.adapter.check_points(attention_names(prediction.adapter))
    if layer is not None:
        prediction.adapter.check_layer("layer", layer)
    if reference is None:
        return
    if masked:
        raise ValueError("mask= and a reference both say what is put in: give only one")
    if reference.model is not prediction.model:
        raise ValueError(f"the reference is of another {type(reference.model).__name__}, not of the same model")
    if len(reference) != len(prediction):
        raise ValueError(f"the reference has {len(reference)} tokens, and the prediction {len(prediction)}")


def attention_names(adapter: ModelAdapter) -> list[str]:
    """Name the hook points of queries and keys in every layer."""
    return [name for layer in range(adapter.layers) for name in queries_keys_names(layer)]


def group_members(groups: Iterable[Iterable[int]], n: int) -> Bool[Tensor, "group pos"]:
    """Return the positions by group; refuse groups that are not lists of positions."""
    groups = [*groups]
    if not groups:
        raise ValueError("groups is empty: name at least one group, as in [[3, 4]]")
    members = torch.zeros(len(groups), n, dtype=torch.bool)
    for number, group in enumerate(groups):
        members[number, chosen_positions(f"group {number}", group, n, "of the context")] = True
    return members


@one_at_a_time("prediction")
def effects(
    prediction: Prediction,
    *,
    how: How = "edge_patch",
    mask: Mask = "zero",
    layer: int | None = None,
    reference: Prediction | None = None,
    patterns: Patterns = "frozen",
    groups: Iterable[Iterable[int]] | None = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
    draws: int = DRAWS,
    seed: int = 0,
) -> Float[Tensor, "group"]:
    """Return ``g(clean) - g(patched)`` for each group of positions; above 0, the group supports the target.

    A patch comes from a run in which the whole group is masked at once, or from the ``reference``, a prediction of
    equally many tokens by the same model. ``how`` names the patched activations:

    - ``edge_patch``: the value vectors that the last position reads from the group, at all layers and heads. Earlier
      positions stay clean. The attention of the last position stays clean too, unless ``patterns`` are
      ``recomputed``, from new queries over clean keys. In a group with the last position, the last position's
      embedding is replaced too and its attention is recomputed, because clean attention belongs to the clean query;
      the last position alone is equal to ``input``.
    - ``resid_patch``: the input of ``layer`` at the group's positions; the rest of the run follows.
    - ``input``: the embeddings of the group; the rest of the run follows.

    Two further ways change the text instead, and have no mask and no reference:

    - ``delete``: the group is left out, and the tokens after it move up.
    - ``resample``: every token of the group is drawn again from what the model predicts there, the mean effect over
      ``draws`` texts. Nothing predicts the first token, which stays.

    ``mask`` replaces a masked token's embedding (``zero``, ``mean``, ``vocab_mean``, ``pad``, ``space``, a token id or
    a vector), ``scale`` is the scale of g, ``batch`` the number of copies of the context that run at once; ``groups``
    are the single positions by default.
    """
    check_patch(prediction, how, mask, layer, reference, patterns)
    check_reading(scale, batch)
    check_scale(prediction.target, scale, "log_prob")
    n = len(prediction)
    members = group_members([[position] for position in range(n)] if groups is None else groups, n)
    check_count("draws", draws)
    if how != "resample" and (draws, seed) != (DRAWS, 0):
        raise ValueError(f"draws= and seed= are for how='resample', not for how={how!r}")
    changed = torch.cat([torch.zeros_like(members[:1]), members]).to(prediction.ids.device)  # nothing, and each group
    batches, read = prediction.batches(batch), partial(prediction.read, scale=scale)
    source = prediction if reference is None else reference
    with prediction.running(), source.running(), torch.no_grad():
        if how == "delete":
            likelihoods = removed(prediction, ~changed, read, batches)
        elif how == "resample":
            likelihoods = resampled(prediction, ~changed, read, batches, draws, seed)
        else:
            masked = mask_vector(prediction, mask).expand_as(prediction.embeddings)
            pair = Pair(prediction, source, masked if reference is None else reference.embeddings)
            edges = how == "edge_patch"
            run = edges_patched(pair, frozen=patterns == "frozen") if edges else partial(pair.patched, layer)
            likelihoods = batches.map(lambda groups: read(run(groups)), changed, n)
    differences = likelihoods[0] - likelihoods[1:]
    check_finite(differences, lambda group, value: f"the effect of group {group} is {value}")
    return differences


def resampled(
    prediction: Prediction,
    present: Bool[Tensor, "copy pos"],
    read: Callable[[Float[Tensor, "some vocab"]], Float[Tensor, "some"]],
    batches: Batches,
    draws: int,
    seed: int,
) -> Float[Tensor, "copy"]:
    """Return the mean likelihood with all tokens but the present ones drawn from the model's predictions."""
    others = redrawn(prediction, draws, seed)
    return torch.stack([ablated(prediction, present, other, read, batches) for other in others]).mean(0)


def redrawn(prediction: Prediction, draws: int, seed: int) -> Iterator[Float[Tensor, "pos d"]]:
    """Yield embeddings of tokens drawn from what the model predicts at every position; the first token stays."""
    ids, table = prediction.ids, prediction.adapter.embedding_table
    generator, whole = prompt_generator(seed, ids), replace(prediction.adapter, reads=())  # an activation is no token
    read, hooked = range(len(prediction)), bool(prediction.user_hooks)
    logits = whole.run(prediction.whole_ids[None], read=read, whole=hooked)[0]
    reached = logits[:-1].cpu().double().softmax(-1).cumsum(-1)
    for _ in range(draws):
        points = torch.from_numpy(generator.random((len(reached), 1))) * reached[:, -1:]
        drawn = torch.searchsorted(reached, points)[:, 0].tolist()
        yield table([int(ids[0]), *drawn]).to(prediction.embeddings)


@dataclass(frozen=True, eq=False)
class Pair:
    """The patched prediction, and the ``source`` of patches: the same prediction, or a counterfactual.

    The ``other`` embeddings replace the embeddings of a group: a mask's, or the counterfactual's.
    """

    prediction: Prediction
    source: Prediction
    other: Float[Tensor, "pos d"]

    def replaced(
        self, prediction: Prediction, groups: Bool[Tensor, "copy pos"], start: int
    ) -> Float[Tensor, "copy later d"]:
        """Copy a context's embeddings from ``start`` on, with the other embeddings in the groups."""
        there = rearrange(groups[:, start:], "copy pos -> copy pos 1")
        return torch.where(there, self.other[start:], prediction.embeddings[start:])

    def hooks(self, groups: Bool[Tensor, "copy pos"], names: Iterable[str], start: int) -> dict[str, Replacing]:
        """Return hooks for putting in activations of the source, after its groups' embeddings are replaced."""
        stop = max(groups.any(0).nonzero().flatten().tolist(), default=start) + 1
        values = noted(self.source, names, self.replaced(self.source, groups, start)[:, : stop - start], start)
        return {name: put_where(groups[:, start:stop], each) for name, each in values.items()}

    def patched(self, layer: int | None, groups: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy vocab"]:
        """Return the logits with each group's embeddings replaced, or with a layer's input."""
        start = first_position([groups], self.prediction, self.source)
        if layer is None:
            return logits_with(self.prediction, {}, self.replaced(self.prediction, groups, start), start)
        states = repeat(self.prediction.states(layer)[start:], "pos d -> copy pos d", copy=len(groups))
        hooks = self.hooks(groups, [self.prediction.adapter.stream_name(layer)], start)
        return logits_with(self.prediction, hooks, states, start, layer)


def edges_patched(pair: Pair, *, frozen: bool) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy vocab"]]:
    """Return a function for runs with changed values for the last position; ``frozen`` patterns are clean.

    Every position reads the other values, so the earlier positions are made clean again at the input of every layer.
    Patterns are frozen by queries and keys, because a hook on a pattern comes too late in several models. The user's
    hooks see these runs like other runs.
    """
    prediction, adapter = pair.prediction, pair.prediction.adapter
    before = noted(prediction, map(adapter.stream_name, range(1, adapter.layers)), positions=slice(-1))
    of_last = noted(prediction, attention_names(adapter), positions=slice(-1, None)) if frozen else {}

    def run(groups: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy vocab"]:
        start = first_position([groups], prediction, pair.source)
        edges, last, attending = groups.clone(), groups.clone(), ~groups
        edges[:, -1], last[:, :-1], attending[:, :-1] = False, False, False
        earlier = torch.ones_like(groups[:, start:-1])
        hooks = {
            **pair.hooks(edges, values_names(adapter.layers), start),
            **{name: put_where(earlier, states[:, start:]) for name, states in before.items()},
            **{name: put_where(attending[:, start:], states) for name, states in of_last.items()},
        }
        return logits_with(prediction, hooks, pair.replaced(prediction, last, start), start)

    return run
