"""Effects of patching tokens: the drop in likelihood if activations of chosen tokens come from another run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.numerics import check_finite
from heta_lens._util.options import AtLeast, Batch, check_choice, check_count, chosen_positions
from heta_lens.model.adapter import Mask, ModelAdapter, check_mask
from heta_lens.model.hooks import (
    BatchHook,
    Hook,
    pattern_name,
    put_positions,
    put_where,
    queries_keys_names,
    values_name,
)
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.coalitions import removed
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.masking import ablated
from heta_lens.prediction.prediction import Prediction, prompt_generator
from heta_lens.prediction.target import Scale, check_scale

How: TypeAlias = Literal["edge_patch", "resid_patch", "input", "delete", "resample"]
EDITS = ("delete", "resample")  # changes of the text
DRAWS = 3  # of a resampled text
Patterns: TypeAlias = Literal["frozen", "recomputed"]


def check_reading(scale: Scale, batch: Batch) -> None:
    """Refuse an unknown scale or batch size."""
    check_choice("scale", scale, get_args(Scale))
    if not isinstance(batch, str) or batch != "auto":
        AtLeast(1, whole=True)("batch", batch)


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
        given = "mask=" if masked else "a reference"
        raise ValueError(f"how={how!r} changes the text, and puts nothing in: leave {given} out")
    if how == "edge_patch" and patterns == "frozen":
        prediction.adapter.check_points(attention_names(prediction.adapter))
    if layer is not None:
        prediction.adapter.check_layer("layer", layer)
    if reference is None:
        return
    if masked:
        raise ValueError("mask= and a reference both say what is put in: give only one")
    if reference.adapter.model is not prediction.adapter.model:
        raise ValueError(f"the reference is of another {type(reference.adapter.model).__name__}, not of the same model")
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
    if how in EDITS:
        edited = deleted if how == "delete" else partial(resampled, draws=draws, seed=seed)
        effects = edited(prediction, members, scale, batch)
        check_finite(effects, lambda group, value: f"the effect of group {group} is {value}")
        return effects
    source = prediction if reference is None else reference
    with prediction.running(), source.running(), torch.no_grad():
        other = prediction.mask_vector(mask) if reference is None else reference.embeddings
        pair = Pair(prediction, source, other, scale)
        if how == "edge_patch":
            patched = edges_patched(pair, frozen=patterns == "frozen")
        else:
            patched = partial(pair.patched, layer)
        members = members.to(prediction.embeddings.device)
        clean = patched(torch.zeros_like(members[:1]))  # the same way as the patched runs
        differences = clean - prediction.prompt.batches(batch, n).map(patched, members, n)
    check_finite(differences, lambda group, value: f"the effect of group {group} is {value}")
    return differences


def deleted(
    prediction: Prediction, members: Bool[Tensor, "group pos"], scale: Scale, batch: Batch
) -> Float[Tensor, "group"]:
    """Return the effects of leaving out each group of tokens."""
    present = torch.cat([torch.ones_like(members[:1]), ~members])
    batches = prediction.prompt.batches(batch, len(prediction))
    with prediction.running():
        clean, *without = removed(prediction, present, partial(prediction.read, scale=scale), batches)
    return clean - torch.stack(without)


@torch.no_grad()
def resampled(
    prediction: Prediction, members: Bool[Tensor, "group pos"], scale: Scale, batch: Batch, draws: int, seed: int
) -> Float[Tensor, "group"]:
    """Return the mean effects of drawing each group of tokens from the model's predictions after the clean text."""
    ids, table = prediction.ids, prediction.adapter.embedding_table
    batches, generator = prediction.prompt.batches(batch, len(prediction)), prompt_generator(seed, prediction.ids)
    present = torch.cat([torch.ones_like(members[:1]), ~members])
    with prediction.running():
        logits = prediction.rerun(read=range(len(prediction))).logits(prediction.embeddings[None])[0]
        reached = logits[:-1].double().softmax(-1).cumsum(-1).cpu()
        effects = []
        for _ in range(draws):
            points = torch.from_numpy(generator.random((len(reached), 1))) * reached[:, -1:]
            drawn = torch.searchsorted(reached, points)[:, 0].tolist()
            others = table([int(ids[0]), *drawn]).to(prediction.embeddings)
            clean, *changed = ablated(prediction, present, others, scale, batches)
            effects.append(clean - torch.stack(changed))
    return torch.stack(effects).mean(0)


@dataclass(frozen=True, eq=False)
class Pair:
    """The patched prediction, and the ``source`` of patches: the same prediction, or a counterfactual.

    The ``other`` embeddings replace the embeddings of a group: a mask's, or the counterfactual's.
    """

    prediction: Prediction
    source: Prediction
    other: Float[Tensor, "d"] | Float[Tensor, "pos d"]
    scale: Scale

    def span(self, rows: Bool[Tensor, "copy pos"]) -> tuple[int, int]:
        """Return the range of the context with the groups; the range starts at 0 if runs cannot begin later."""
        positions = rows.any(0).nonzero().flatten().tolist() or [len(self.prediction) - 1]
        resumes = self.prediction.prompt.prefix().kept is not None and self.source.prompt.prefix().kept is not None
        return positions[0] if resumes else 0, positions[-1] + 1

    def replaced(self, prediction: Prediction, rows: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy pos d"]:
        """Copy a context's embeddings, with the other embeddings at the given tokens."""
        return torch.where(rearrange(rows, "copy pos -> copy pos 1"), self.other, prediction.embeddings)

    def replacements(self, rows: Bool[Tensor, "copy pos"], names: Iterable[str]) -> dict[str, Float[Tensor, "row ..."]]:
        """Return activations of the source, at every position of every group."""
        start, stop = self.span(rows)
        states, places = self.replaced(self.source, rows)[:, start:stop], rows[:, start:stop]
        return picked(self.source, states, start, dict.fromkeys(names, lambda live: live[:, : stop - start][places]))

    def patched(self, layer: int | None, rows: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
        """Return the likelihood with each group's embeddings replaced, or with a layer's input."""
        start, _ = self.span(rows)
        if layer is None:
            states = self.replaced(self.prediction, rows)
        else:
            name = self.prediction.adapter.stream_name(layer)
            states = repeat(self.prediction.states(layer), "pos d -> copy pos d", copy=len(rows)).clone()
            states[rows] = self.replacements(rows, [name])[name].to(states)
        return likelihood(self.prediction, states[:, start:], self.scale, start, layer)


def picked(
    prediction: Prediction,
    states: Float[Tensor, "copy pos d"],
    start: int,
    picks: Mapping[str, Callable[[Tensor], Tensor]],
) -> dict[str, Tensor]:
    """Pick from activations in a run from a position on, with given embeddings."""
    results: dict[str, Tensor] = {}

    def hook(name: str, pick: Callable[[Tensor], Tensor], live: Tensor) -> None:
        results[name] = pick(live)

    with prediction.adapter.hooked([(name, partial(hook, name, pick)) for name, pick in picks.items()]):
        prediction.rerun(start, read=[start + states.shape[1] - 1]).logits(states)
    return results


def edges_patched(pair: Pair, *, frozen: bool) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
    """Return a function for runs with changed values for the last position; ``frozen`` patterns are clean.

    Every position reads the other values, so the earlier positions are made clean again at the input of every layer.
    Patterns are frozen by queries and keys, because a hook on a pattern comes too late in several models. The user's
    hooks see these runs like other runs.
    """
    prediction, adapter, n = pair.prediction, pair.prediction.adapter, len(pair.prediction)

    def clean(positions: int | slice, names: Iterable[str]) -> dict[str, Tensor]:
        picks = dict.fromkeys(names, lambda live: live[0, :n][positions].clone())
        return picked(prediction, prediction.embeddings[None], 0, picks)

    before = clean(slice(-1), map(adapter.stream_name, range(1, adapter.layers)))
    of_last = clean(-1, attention_names(adapter)) if frozen else {}

    def patched(rows: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
        start, _ = pair.span(rows)
        edges, last, attending = rows.clone(), rows.clone(), ~rows
        edges[:, -1], last[:, :-1], attending[:, :-1] = False, False, False
        values = pair.replacements(edges, map(values_name, range(adapter.layers)))
        hooks: dict[str, Hook] = {
            **{name: put_where(edges[:, start:], other) for name, other in values.items()},
            **{name: put_positions(states[start:], 0, n - 1 - start) for name, states in before.items()},
            **{name: put_where(attending[:, start:], state) for name, state in of_last.items()},
        }
        with adapter.hooked(list(hooks.items())):
            return likelihood(prediction, pair.replaced(prediction, last)[:, start:], pair.scale, start)

    return patched


# ---------------------------------------------------------------------------------------------- values for many runs
def values_put(
    prediction: Prediction, positions: Sequence[int], values: Float[Tensor, "place ..."], layer: int
) -> AbstractContextManager[None]:
    """Give tokens other values for the length of a block, in every run that reaches the tokens."""

    every = torch.as_tensor(positions, dtype=torch.long)

    def put_reached(live: Tensor) -> Tensor:
        patched, reached = live.clone(), every < live.shape[1]
        places = every[reached]
        patched[:, places] = values[reached].to(live).reshape(len(places), *live.shape[2:])
        return patched

    hooks = [(values_name(layer), BatchHook(put_reached)), (pattern_name(layer), BatchHook(_refuse_continued))]
    return prediction.adapter.hooked(hooks)


def _refuse_continued(pattern: Float[Tensor, "copy head query key"]) -> None:
    """Refuse a run that continues kept keys and values, because the first position is unknown."""
    if pattern.shape[-2] < pattern.shape[-1]:
        raise RuntimeError(
            "a run continued kept keys and values, so the positions at which to put values are unknown: run the whole "
            "text anew, with use_past_kv_cache=False"
        )
