"""Interventions: how much less likely the target is when what some tokens hand on comes from another run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypeAlias, get_args

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens.lens import BatchHook, Hook, pattern_name, queries_keys_names, values_name
from heta_lens.masking import Mask, check_mask
from heta_lens.options import Batch, check_batch, check_choice, chosen_positions
from heta_lens.prediction import Prediction
from heta_lens.progress import Done
from heta_lens.scales import Scale
from heta_lens.turns import one_at_a_time

How: TypeAlias = Literal["edge_patch", "resid_patch", "input"]
Patterns: TypeAlias = Literal["frozen", "recomputed"]
Patched: TypeAlias = Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]


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
    done: Done = lambda _: None,
) -> Float[Tensor, "group"]:
    """``g(clean) - g(patched)`` for each group of positions patched together: above 0 speaks for the target.

    What is put into the clean run comes from a run in which the whole group is masked at once; or from the
    ``reference``, another prediction of as many tokens by the same model, just as it is. ``how`` says what is put in:

    - ``edge_patch``: the value vectors that the last position reads from the group, at all layers and heads. Earlier
      positions stay clean, and so does the attention of the last, unless ``patterns`` are ``recomputed``: by its own
      queries, over clean keys. A group that holds the last position replaces its embedding as well, and its attention
      is recomputed, because the clean one belongs to another query; alone, it is the same as ``input``.
    - ``resid_patch``: what enters ``layer`` at these positions; the rest of the run follows.
    - ``input``: their embeddings; the rest of the run follows.

    ``mask`` is what a masked token's embedding becomes (``zero``, ``mean``, ``vocab_mean``, ``pad``, a token id or a
    vector), ``scale`` what g is, ``batch`` how many copies of the context run at once; ``groups`` are the single
    positions by default. ``done`` is told how many groups were done.
    """
    _check(prediction, how, mask, layer, reference, patterns, scale, batch)
    n = len(prediction)
    members = _members([[place] for place in range(n)] if groups is None else groups, n)
    source = prediction if reference is None else reference
    with prediction.running(), source.running(), torch.no_grad():
        other = prediction.mask_vector(mask) if reference is None else reference.embeddings
        pair = Pair(prediction, source, other, scale)
        run = _run(pair, how, layer, patterns)

        def left(some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
            found = run(some)
            done(len(some))
            return found

        members = members.to(prediction.embeddings.device)
        clean = run(torch.zeros_like(members[:1]))  # on the way that the patched runs take
        found = clean - prediction.prompt.batches(batch, n).map(left, members, n)
    check_finite(found, lambda group: f"the effect of group {group}")
    return found


def _run(pair: "Pair", how: How, layer: int | None, patterns: Patterns) -> Patched:
    if how == "edge_patch":
        return Edges(pair, patterns == "frozen").patched
    return partial(input_patched, pair) if layer is None else partial(stream_patched, pair, layer)


@dataclass(frozen=True, eq=False)
class Pair:
    """The prediction that is patched, and the one whose runs say with what: the same (masked), or a counterfactual.

    Where a group is to be replaced, the ``other`` embeddings stand in: a mask's, or the counterfactual's.
    """

    asked: Prediction
    source: Prediction
    other: Float[Tensor, "d"] | Float[Tensor, "pos d"]
    scale: Scale

    def span(self, some: Bool[Tensor, "copy pos"]) -> tuple[int, int]:
        """The part of the context that holds the groups; from the first token on, if runs cannot begin later."""
        places = some.any(0).nonzero().flatten().tolist() or [len(self.asked) - 1]
        resumes = self.asked.prompt.kept is not None and self.source.prompt.kept is not None
        return places[0] if resumes else 0, places[-1] + 1

    def replaced(self, of: Prediction, some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy pos d"]:
        """Copies of a context's embeddings, with the other ones for these tokens."""
        return torch.where(rearrange(some, "copy pos -> copy pos 1"), self.other, of.embeddings)

    def replacements(self, some: Bool[Tensor, "copy pos"], names: Iterable[str]) -> dict[str, Float[Tensor, "row ..."]]:
        """What these activations are at each position of each group, where they are taken from."""
        start, stop = self.span(some)
        pick = partial(_rows, some[:, start:stop])
        return picked(self.source, self.replaced(self.source, some)[:, start:stop], start, dict.fromkeys(names, pick))

    def read(self, states: Float[Tensor, "copy pos d"], start: int, layer: int | None = None) -> Float[Tensor, "copy"]:
        """How likely the target is, with these states from a position on."""
        return self.asked.read(self.asked.logits_from(start, layer)(states), self.scale)


def picked(
    asked: Prediction, states: Float[Tensor, "copy pos d"], start: int, picks: Mapping[str, Callable[[Tensor], Tensor]]
) -> dict[str, Tensor]:
    """What is picked of activations in a run of some positions, with these embeddings."""
    seen: dict[str, Tensor] = {}

    def hook(name: str, pick: Callable[[Tensor], Tensor], live: Tensor) -> None:
        seen[name] = pick(live)

    with asked.lens.hooked([(name, partial(hook, name, pick)) for name, pick in picks.items()]):
        asked.prompt.logits_from(start, read=[start + states.shape[1] - 1])(states)
    return seen


# ---------------------------------------------------------------------------------------------- three ways to patch
def input_patched(pair: Pair, some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
    start, _ = pair.span(some)
    return pair.read(pair.replaced(pair.asked, some)[:, start:], start)


def stream_patched(pair: Pair, layer: int, some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
    name, (start, _) = pair.asked.lens.stream_name(layer), pair.span(some)
    clean = repeat(pair.asked.states(layer), "pos d -> copy pos d", copy=len(some))
    return pair.read(_put_rows(some, pair.replacements(some, [name])[name], clean)[:, start:], start, layer)


@dataclass(frozen=True, eq=False)
class Edges:
    """Runs in which the last position reads other values, attending as it did if patterns are ``frozen``.

    Other values are put where every position reads them; so that they mislead only the last one, the earlier ones are
    made clean again where they enter each layer. Patterns are frozen by their queries and keys: a hook on a pattern
    comes too late in some models. Hooks of the user's see all of it as they see any run.
    """

    pair: Pair
    frozen: bool

    def patched(self, some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy"]:
        asked, (start, _) = self.pair.asked, self.pair.span(some)
        edges, last = some.clone(), some.clone()
        edges[:, -1], last[:, :-1] = False, False
        values = self.pair.replacements(edges, map(values_name, range(asked.lens.layers)))
        stays, place = ~some[:, -1], len(asked) - 1 - start
        hooks: dict[str, Hook] = {
            **{name: partial(_put_rows, edges[:, start:], rows) for name, rows in values.items()},
            **{name: partial(_put_before, states[start:]) for name, states in self._before.items()},
            **{name: partial(_put_at, stays, place, state) for name, state in self._attending.items()},
        }
        with asked.lens.hooked(list(hooks.items())):
            return self.pair.read(self.pair.replaced(asked, last)[:, start:], start)

    @cached_property
    def _before(self) -> dict[str, Float[Tensor, "before d"]]:
        """What enters the later layers before the last position, in the clean run."""
        asked = self.pair.asked
        names = map(asked.lens.stream_name, range(1, asked.lens.layers))
        pick = partial(_of_one, slice(len(asked) - 1))
        return picked(asked, asked.embeddings[None], 0, dict.fromkeys(names, pick))

    @cached_property
    def _attending(self) -> dict[str, Float[Tensor, "head d_head"]]:
        """The queries and keys that the last position has in the clean run, if they are to stay."""
        if not self.frozen:
            return {}
        asked = self.pair.asked
        pick = partial(_of_one, len(asked) - 1)
        return picked(asked, asked.embeddings[None], 0, dict.fromkeys(_attention_names(asked), pick))


def _attention_names(asked: Prediction) -> list[str]:
    return [name for layer in range(asked.lens.layers) for name in queries_keys_names(layer)]


# ------------------------------------------------------------------------------------------- what hooks keep and put
def values_put(
    prediction: Prediction, places: Sequence[int], values: Float[Tensor, "place ..."], layer: int
) -> AbstractContextManager[None]:
    """While this lasts, these tokens have these values in every run of the model that reaches them."""

    def put(live: Tensor) -> Tensor:
        found = live.clone()
        there = [row for row, place in enumerate(places) if place < live.shape[1]]
        found[:, [places[row] for row in there]] = values[there].to(live).reshape(len(there), *live.shape[2:])
        return found

    hooks = {values_name(layer): put, pattern_name(layer): _refuse_continued}
    return prediction.lens.hooked([(name, BatchHook(hook)) for name, hook in hooks.items()])


def _refuse_continued(pattern: Float[Tensor, "copy head query key"]) -> None:
    """A run that continues kept keys and values does not say at which position it begins."""
    if pattern.shape[-2] < pattern.shape[-1]:
        raise RuntimeError(
            "a run continued keys and values that were kept, and cannot be told where values are put: run the whole "
            "text anew, with use_past_kv_cache=False"
        )


def _rows(places: Bool[Tensor, "copy pos"], live: Tensor) -> Float[Tensor, "row ..."]:
    """What is at these places; a run may be longer."""
    return live[:, : places.shape[1]][places]


def _of_one(places: int | slice, live: Tensor) -> Tensor:
    """Of a run of a single copy."""
    return live[0, places].clone()


def _put_rows(places: Bool[Tensor, "copy pos"], rows: Float[Tensor, "row ..."], live: Tensor) -> Tensor:
    found = live.clone()
    found[:, : places.shape[1]][places] = rows.to(live)
    return found


def _put_before(clean: Float[Tensor, "before d"], live: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy pos d"]:
    before = repeat(clean, "pos d -> copy pos d", copy=len(live)).to(live)
    return torch.cat([before, live[:, len(clean) :]], 1)


def _put_at(
    copies: Bool[Tensor, "copy"], place: int, state: Float[Tensor, "..."], live: Float[Tensor, "copy pos ..."]
) -> Float[Tensor, "copy pos ..."]:
    found = live.clone()
    found[copies, place] = state.to(live)
    return found


# --------------------------------------------------------------------------------------------------- what is refused
def check_finite(found: Float[Tensor, "item"], named: Callable[[int], str]) -> None:
    """Refuse a NaN or an infinity, and say what of."""
    bad = (~found.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"{named(bad[0])} is {float(found[bad[0]])}")


def check_reading(scale: Scale, batch: Batch) -> None:
    """Refuse what cannot be read of copies of a run."""
    check_choice("scale", scale, get_args(Scale))
    check_batch(batch)


def _check(
    prediction: Prediction,
    how: How,
    mask: Mask,
    layer: int | None,
    reference: Prediction | None,
    patterns: Patterns,
    scale: Scale,
    batch: Batch,
) -> None:
    for asked in (prediction, prediction if reference is None else reference):
        if not isinstance(asked, Prediction):
            way_out = "heta_lens.Prediction.from_cache(cache, target, tokens=tokens) makes one"
            raise TypeError(f"a {type(asked).__name__} is no prediction: {way_out}")
    for name, value, kind in (("how", how, How), ("patterns", patterns, Patterns)):
        check_choice(name, value, get_args(kind))
    check_reading(scale, batch)
    check_mask("mask", mask)
    if how != "edge_patch" and patterns != "frozen":
        raise ValueError(f"patterns={patterns!r} is for how='edge_patch', not for how={how!r}")
    if (how == "resid_patch") != (layer is not None):
        raise ValueError(f"layer={layer!r} with how={how!r}: how='resid_patch' needs a layer, and no other way has one")
    missing = [name for name in _attention_names(prediction) if name not in prediction.lens.points]
    if how == "edge_patch" and patterns == "frozen" and missing:
        kind = type(prediction.lens.model).__name__
        raise ValueError(f"this {kind} has no {missing[0]}, without which patterns='recomputed' are all there is")
    if layer is not None:
        prediction.lens.check_layer("layer", layer)
    if reference is not None:
        _check_reference(prediction, mask, reference)


def _check_reference(prediction: Prediction, mask: Mask, reference: Prediction) -> None:
    if isinstance(mask, Tensor) or mask != "zero":
        said = f"a vector of {len(mask)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"mask={said} and a reference are two things to put in: give one of them")
    if reference.lens.model is not prediction.lens.model:
        raise ValueError(f"the reference is of another {type(reference.lens.model).__name__}, not of the same model")
    if len(reference) != len(prediction):
        raise ValueError(f"the reference has {len(reference)} tokens, and the prediction {len(prediction)}")


def _members(groups: Iterable[Iterable[int]], n: int) -> Bool[Tensor, "group pos"]:
    """Who is in which group."""
    if not isinstance(groups, Iterable):
        raise TypeError(f"groups={groups!r} is no list of groups of positions: write [[3], [4, 5]] for two")
    groups = [*groups]
    if not groups:
        raise ValueError("groups holds no group of positions")
    members = torch.zeros(len(groups), n, dtype=torch.bool)
    for number, (row, group) in enumerate(zip(members, groups, strict=True)):
        row[chosen_positions(f"group {number}", group, n, "of the context")] = True
    return members
