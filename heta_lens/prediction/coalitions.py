"""Coalitions: what is predicted when only some players (tokens, or groups of them) are left of the context."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens._util.work_counting import Done, Work
from heta_lens.model.batching import Batches
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale, ablated

ROWS = 64  # whose logits are held in float64 at once


def each_token(prediction: Prediction, keep_bos: bool) -> Bool[np.ndarray, "player pos"]:
    """Every token is a player, except one that only marks the beginning of the text."""
    return np.eye(len(prediction), dtype=bool)[int(keep_bos and prediction.begins) :]


def worths(
    members: Bool[np.ndarray, "player pos"],
    masks: Bool[np.ndarray, "sample player"],
    with_present: Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]],
) -> Float[np.ndarray, "sample"]:
    """How likely the target is with what each coalition leaves of the context; a repeated coalition is run once."""
    distinct, which = np.unique(masks, axis=0, return_inverse=True)
    likelihoods = with_present(torch.from_numpy(still_there(members, distinct)))
    return likelihoods.cpu().double().numpy()[which.reshape(-1)]


def with_only(
    prediction: Prediction, mask: Mask, scale: Scale, batch: int | Literal["auto"], work: Work
) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
    """How likely the target is with the tokens that are present, the others masked."""
    batches, done = prediction.prompt.batches(batch, len(prediction)), partial(work.add, "forwards")
    return partial(ablated, prediction, mask=prediction.mask_vector(mask), scale=scale, batches=batches, done=done)


def still_there(
    members: Bool[np.ndarray, "player pos"], masks: Bool[np.ndarray, "sample player"]
) -> Bool[np.ndarray, "sample pos"]:
    """Which positions are unchanged: those of players who are there, and those that belong to no player."""
    gone = (~masks).astype(np.float32) @ members.astype(np.float32)  # booleans are multiplied slowly
    return gone == 0


def placed(
    prediction: Prediction, members: Bool[np.ndarray, "player pos"], values: Float[np.ndarray, "player"]
) -> Float[Tensor, "pos"]:
    """The players' values at their tokens, and 0 elsewhere."""
    return torch.from_numpy(values @ members).to(prediction.embeddings)


def removed(
    prediction: Prediction,
    present: Bool[Tensor, "copy pos"],
    nothing: int | None,
    scale: Scale,
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """How likely the target is when only the tokens ``present`` are left, side by side; if none, ``nothing``."""
    return read_without(prediction, present, nothing, partial(prediction.read, scale=scale), batches, done)


def read_without(
    prediction: Prediction,
    present: Bool[Tensor, "copy pos"],
    nothing: int | None,
    read: Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]],
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """What ``read`` gives when only the tokens ``present`` are left, side by side; ``nothing`` stands in if none is."""
    ids = prediction.ids
    if nothing is not None:
        ids, present = led_by(nothing, ids, present, ~present.any(1))
    return read_alone(prediction, ids, present, read, batches, done)


def nothing_left(prediction: Prediction) -> int | None:
    """The token that stands for an empty context."""
    tokenizer = prediction.adapter.tokenizer
    return tokenizer.filler if tokenizer.bos is None else tokenizer.bos


def led_by(
    token: int, ids: Int[Tensor, "pos"], present: Bool[Tensor, "copy pos"], where: Bool[Tensor, "copy"]
) -> tuple[Int[Tensor, "longer"], Bool[Tensor, "copy longer"]]:
    """The same with a token before it, which is present in some of the copies."""
    return torch.cat([ids.new_tensor([token]), ids]), torch.cat([rearrange(where, "copy -> copy 1"), present], 1)


@torch.no_grad()
def read_alone(
    prediction: Prediction,
    ids: Int[Tensor, "pos"],
    present: Bool[Tensor, "copy pos"],
    read: Callable[[Float[Tensor, "row vocab"]], Float[Tensor, "row"]],
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """What ``read`` gives after the tokens that are ``present`` in each copy, as if there were no others.

    They are moved to the front and read at their end, where the others after them have no effect. So copies of
    different lengths run at once.
    """
    present = present.to(ids.device)
    kept = present.sum(1)
    order = (~present).to(torch.uint8).argsort(stable=True)

    def run(rows: Int[Tensor, "row"]) -> Float[Tensor, "row"]:
        ends = rearrange(kept[rows], "row -> row 1")
        values = read(prediction.prompt.logits_of(ids[order[rows, : int(ends.max())]], read=ends - 1)[:, 0])
        done(len(rows))
        return values

    shortest_first = kept.argsort()
    return batches.map(run, shortest_first, present.shape[1])[shortest_first.argsort()]


@torch.no_grad()
def read_everywhere(
    prediction: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale, done: Done
) -> Float[Tensor, "copy pos"]:
    """How likely the target is at every position.

    A few rows at a time, because a scale may need a second copy of their logits, in float64.
    """
    logits = prediction.prompt.logits_from(0, read=range(len(prediction)))(states)
    done(len(states))
    return torch.stack([torch.cat([prediction.read(rows, scale) for rows in copy.split(ROWS)]) for copy in logits])
