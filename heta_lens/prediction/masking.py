"""Masks and masked contexts: the embedding that replaces masked tokens, and what is predicted then."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Annotated, Any, Literal, NamedTuple, SupportsIndex, TypeAlias, get_args

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.numerics import Divergence
from heta_lens._util.options import check_token, is_whole
from heta_lens._util.target_kinds import Activation
from heta_lens.model.batching import MASKED, Batches
from heta_lens.model.tokenizer import StandIn
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun
from heta_lens.prediction.target import log_softmax

SUBSETS = 32  # random sets of tokens that are masked, beside every single token
KEEPING = 4  # forwards that it costs to keep a prefix, and to make sure that runs continue from it

MaskName: TypeAlias = Literal["zero", "mean", "vocab_mean", StandIn]
Mask: TypeAlias = MaskName | SupportsIndex | Tensor
"""The replacement of a token's embedding: a name, a token's id or a vector."""


def check_mask(name: str, mask: Any) -> None:
    """Refuse a mask that is neither a known name, a token id nor a vector."""
    if isinstance(mask, Tensor):
        if mask.ndim != 1 or not mask.is_floating_point():
            raise ValueError(f"{name} must be one vector of floats, not {mask.dtype} of shape {tuple(mask.shape)}")
    elif not (is_whole(mask) or (isinstance(mask, str) and mask in get_args(MaskName))):
        raise ValueError(f"{name}={mask!r} is not one of {', '.join(get_args(MaskName))}, a token id or a torch vector")


Masking: TypeAlias = Annotated[Mask, check_mask]  # the type of an option


def depends_on_context(mask: Mask) -> bool:
    """Return whether the mask differs between contexts of one prompt."""
    return isinstance(mask, str) and mask == "mean"


def mask_vector(prediction: Prediction, mask: Mask) -> Float[Tensor, "d"]:
    """Return the embedding that replaces a masked token's: zeros, an average, a token's, or the given vector."""
    adapter, embeddings = prediction.adapter, prediction.embeddings
    if isinstance(mask, Tensor):
        if len(mask) != embeddings.shape[1]:
            raise ValueError(f"mask has {len(mask)} entries; this model's embeddings have {embeddings.shape[1]}")
        return mask.detach().to(embeddings)
    if mask == "zero":
        return torch.zeros_like(embeddings[0])
    if mask == "mean":
        return embeddings.mean(0)
    if mask == "vocab_mean":
        return adapter.embedding_table().to(embeddings).mean(0)
    token = adapter.tokenizer.stand_in(mask) if mask in ("pad", "space") else index(mask)
    if token is None:
        raise ValueError(f"mask={mask!r} needs a tokenizer with a padding, end or unknown token: give a token id")
    check_token("mask", token, adapter.vocabulary)
    return adapter.embedding_table([token])[0].to(embeddings)


def masked_copies(
    embeddings: Float[Tensor, "pos d"],
    positions: Int[Tensor, "copy"],
    vector: Float[Tensor, "d"] | Float[Tensor, "copy d"],
) -> Float[Tensor, "copy pos d"]:
    """Copy the context once per position, with that position masked by a shared vector or by its own."""
    copies = repeat(embeddings, "pos d -> copy pos d", copy=len(positions)).clone()
    copies[torch.arange(len(positions), device=copies.device), positions] = vector
    return copies


class MaskedEffects(NamedTuple):
    """Effects of masking parts of a context: how far the distribution moves (of an activation: the target's number),
    and how much g drops.
    """

    divergence: Float[Tensor, "target part"]
    drop: Float[Tensor, "target part"]


@torch.no_grad()
def masked_effects(
    predictions: Sequence[Prediction],
    mask: Mask,
    divergence: Divergence,
    *,
    batches: Batches,
    start: int = 0,
    stop: int | None = None,
    parts: Sequence[range] | None = None,
    floor: bool = False,
) -> MaskedEffects:
    """Mask one part of the context at a time, and compare the prediction of every target with its clean one.

    ``predictions`` are of one prompt, shorter contexts first: one set of runs serves all of them. ``parts`` are
    positions in a row, in order; by default, every token by itself, and an empty part masks nothing. With ``start`` and
    ``stop``, only the states of that window and the last positions react. A part whose embeddings are the mask already
    has an effect of 0 and is not run.

    ``floor`` also runs the clean context with the first and last batch of every start. Effects that are no larger than
    its distance from the clean prediction, which is rounding, are 0.
    """
    longest, embeddings = predictions[-1], predictions[-1].embeddings
    vector, end = mask_vector(longest, mask), len(longest) if stop is None else stop
    parts = [range(place, place + 1) for place in range(start, end)] if parts is None else parts
    ends = torch.tensor([(part.start, part.stop) for part in parts])
    effects = longest.logits.new_zeros(len(MaskedEffects._fields), len(predictions), len(parts))
    rounding = effects.new_zeros(len(effects), len(predictions), 1)
    changed = (embeddings != vector).any(-1).tolist()
    to_run = [number for number, part in enumerate(parts) if not part or any(changed[part.start : part.stop])]
    for group in longest.by_start([parts[number].start for number in to_run], end, MASKED):
        numbers, to_run, first = to_run[: len(group)], to_run[len(group) :], group[0]
        read = [len(prediction) - 1 for prediction in predictions if len(prediction) > first]
        rerun, places = longest.rerun(first, stop=stop, read=read), torch.arange(first, end)

        def run(
            spans: Int[Tensor, "copy 2"], first: int = first, rerun: Rerun = rerun, places: Tensor = places
        ) -> Float[Tensor, "copy ..."]:
            gone = ((places >= spans[:, :1]) & (places < spans[:, 1:])).to(embeddings.device)
            states = torch.where(rearrange(gone, "copy pos -> copy pos 1"), vector, embeddings[first:end])
            return _compared(predictions, rerun.logits(states), spans[:, 0], divergence)

        spans = ends[numbers]
        if floor:  # nothing is masked in the first and the last copy
            clean = repeat(spans[[0, -1], 0], "copy -> copy 2")
            spans = torch.cat([clean[:1], spans, clean[1:]])
        rows = rearrange(batches.map(run, spans, end - first), "copy kind target -> kind target copy")
        effects[..., numbers] = rows[..., 1:-1] if floor else rows
        if floor:
            rounding = torch.maximum(rounding, rows[..., [0, -1]].abs().amax(-1, keepdim=True))
    return MaskedEffects(*effects.masked_fill(effects.abs() <= rounding, 0))


def _compared(
    predictions: Sequence[Prediction],
    logits: Float[Tensor, "copy reached vocab"],
    places: Int[Tensor, "copy"],
    divergence: Divergence,
) -> Float[Tensor, "copy kind target"]:
    """Compare copies with the clean predictions of the last targets, whose contexts reach the masked places."""
    effects = logits.new_zeros(len(MaskedEffects._fields), len(predictions), len(places))
    for number, rows in enumerate(logits.unbind(1), len(predictions) - logits.shape[1]):
        prediction = predictions[number]
        reached = int((places < len(prediction)).sum())  # the first ones: places ascend
        if not reached:
            continue
        if isinstance(prediction.target, Activation):  # of which there is no distribution
            drop = prediction.value - prediction.objective(rows[:reached])
            effects[:, number, :reached] = torch.stack([drop.abs(), drop])
            continue
        log_probs = log_softmax(rows)[:reached]
        effects[0, number, :reached] = divergence(prediction.log_probs, log_probs)
        effects[1, number, :reached] = prediction.value - prediction.objective(rows[:reached], log_probs)
    return rearrange(effects, "kind target copy -> copy kind target")


@torch.no_grad()
def ablated(
    prediction: Prediction,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"] | Float[Tensor, "pos d"],
    read: Callable[[Float[Tensor, "some vocab"]], Float[Tensor, "some *read"]],
    batches: Batches,
) -> Float[Tensor, "copy *read"]:
    """Apply ``read`` to the logits of copies of the context whose tokens are masked unless ``present``.

    The mask is one vector for every token, or a vector per position.

    Copies run from about their first masked token on, where that saves more than it takes to keep what is before.
    """
    embeddings, length = prediction.embeddings, len(prediction)
    present = present.to(embeddings.device)
    firsts = torch.where(present.all(1), length - 1, (~present).to(torch.uint8).argmax(1))
    order = firsts.argsort(stable=True)
    starts, saved = firsts[order].tolist(), float(firsts.sum()) / length
    groups = prediction.by_start(starts, length, MASKED) if saved > KEEPING else [starts]
    values = []
    for group, rows in zip(groups, order.split(list(map(len, groups))), strict=True):
        start = group[0] if len(groups) > 1 else 0

        def masked(rows: Int[Tensor, "some"], start: int = start) -> Float[Tensor, "some *read"]:
            there = rearrange(present[rows, start:], "copy pos -> copy pos 1")
            other = mask if mask.ndim == 1 else mask[start:]
            return read(prediction.rerun(start).logits(torch.where(there, embeddings[start:], other)))

        values.append(batches.map(masked, rows, length - start))
    return torch.cat(values)[order.argsort()]


# ------------------------------------------------------------------------------------------- masked sets of tokens
def random_sets(generator: np.random.Generator, length: int) -> Bool[Tensor, "subset pos"]:
    """Draw all single positions, and random sets of positions, with all sizes equally likely."""
    chosen = torch.zeros(SUBSETS, length, dtype=torch.bool)
    for row in chosen:
        size = generator.integers(1, length, endpoint=True)
        row[generator.choice(length, size, replace=False)] = True
    return torch.cat([torch.eye(length, dtype=torch.bool), chosen])


def set_drops(
    prediction: Prediction, mask: Mask, sets: Bool[Tensor, "subset pos"], batch: int | Literal["auto"]
) -> Float[Tensor, "subset"]:
    """Return ``g(X) - g(X with a set of tokens masked)`` for every set."""
    batches = prediction.batches(batch)
    return prediction.value - ablated(prediction, ~sets, mask_vector(prediction, mask), prediction.objective, batches)


@torch.no_grad()
def whole_drops(targets: Sequence[Prediction], mask: Mask) -> list[float]:
    """Return the drop of g for every target when the whole context is masked: the sum of additive scores.

    A single run serves all targets, which are of one prompt, the longest context last.
    """
    longest = targets[-1]
    rerun = longest.rerun(read=[len(target) - 1 for target in targets])
    masked = rerun.logits(repeat(mask_vector(longest, mask), "d -> 1 pos d", pos=len(longest)))[0]
    return [float(target.value - target.objective(after)) for target, after in zip(targets, masked, strict=True)]
