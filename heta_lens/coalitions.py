"""Coalitions: contexts of which only some players (tokens, or groups of them) are left, and what is predicted then."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heta_lens.batches import Batches
from heta_lens.likelihood import ablated
from heta_lens.masking import Mask
from heta_lens.prediction import Prediction
from heta_lens.progress import Work
from heta_lens.scales import Scale

ROWS = 64  # whose logits are held in float64 at once


def each_token(asked: Prediction, keep_bos: bool) -> Bool[np.ndarray, "player pos"]:
    """Every token a player, but one that only says that the text begins."""
    return np.eye(len(asked), dtype=bool)[int(keep_bos and asked.begins) :]


def worths(
    members: Bool[np.ndarray, "player pos"],
    masks: Bool[np.ndarray, "sample player"],
    left: Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]],
) -> Float[np.ndarray, "sample"]:
    """How likely the target is by what is ``left`` of the context; a coalition that comes twice is run once."""
    different, which = np.unique(masks, axis=0, return_inverse=True)
    found = left(torch.from_numpy(still_there(members, different)))
    return found.cpu().double().numpy()[which.reshape(-1)]


def with_only(
    asked: Prediction, mask: Mask, scale: Scale, batch: int | Literal["auto"], work: Work
) -> Callable[[Bool[Tensor, "copy pos"]], Float[Tensor, "copy"]]:
    """How likely the target is by the tokens that are present, the others masked."""
    batches, done = asked.prompt.batches(batch, len(asked)), partial(work.add, "forwards")
    return partial(ablated, asked, mask=asked.mask_vector(mask), scale=scale, batches=batches, done=done)


def still_there(
    members: Bool[np.ndarray, "player pos"], masks: Bool[np.ndarray, "sample player"]
) -> Bool[np.ndarray, "sample pos"]:
    """Which positions are themselves: those of players who are there, and those that are no player's."""
    gone = (~masks).astype(np.float32) @ members.astype(np.float32)  # bits are multiplied one by one
    return gone == 0


def placed(
    asked: Prediction, members: Bool[np.ndarray, "player pos"], values: Float[np.ndarray, "player"]
) -> Float[Tensor, "pos"]:
    """The players' values where their tokens are, and 0 for the others."""
    return torch.from_numpy(values @ members).to(asked.embeddings)


@torch.no_grad()
def removed(
    asked: Prediction,
    present: Bool[Tensor, "copy pos"],
    nothing: int | None,
    scale: Scale,
    batches: Batches,
    done: Callable[[int], None],
) -> Float[Tensor, "copy"]:
    """Of each copy only the tokens ``present`` are left, next to each other; of none of them, the token ``nothing``.

    Copies of different lengths run at once, because what comes after the place that is read changes nothing there.
    """
    present = present.to(asked.ids.device)
    kept = present.sum(1)
    ids = asked.ids.expand_as(present).gather(1, (~present).to(torch.uint8).argsort(stable=True))  # those left first
    if nothing is not None:
        ids = torch.where(rearrange(kept == 0, "copy -> copy 1"), nothing, ids)

    def read(rows: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
        ends = rearrange(kept[rows].clamp(min=1), "copy -> copy 1")
        found = asked.read(asked.prompt.logits_of(ids[rows, : int(ends.max())], read=ends - 1)[:, 0], scale)
        done(len(rows))
        return found

    shortest_first = kept.argsort()
    return batches.map(read, shortest_first, len(asked))[shortest_first.argsort()]


def prefixes(
    asked: Prediction,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"],
    scale: Scale,
    batches: Batches,
    done: Callable[[int], None],
) -> Float[Tensor, "copy pos"]:
    """How likely the target is after every position, where in each copy only the tokens ``present`` are themselves."""
    embeddings = asked.embeddings

    def read(some: Bool[Tensor, "copy pos"]) -> Float[Tensor, "copy pos"]:
        found = read_everywhere(asked, torch.where(rearrange(some, "copy pos -> copy pos 1"), embeddings, mask), scale)
        done(len(some))
        return found

    return batches.map(read, present.to(embeddings.device), len(asked))


@torch.no_grad()
def read_everywhere(asked: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale) -> Float[Tensor, "copy pos"]:
    """A few rows at a time, because a scale may need a second copy of their logits, in float64."""
    logits = asked.prompt.logits_from(0, read=range(len(asked)))(states)
    return torch.stack([torch.cat([asked.read(rows, scale) for rows in one.split(ROWS)]) for one in logits])
