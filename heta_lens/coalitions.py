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
from heta_lens.progress import Done, Work
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


def removed(
    asked: Prediction,
    present: Bool[Tensor, "copy pos"],
    nothing: int | None,
    scale: Scale,
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """Of each copy only the tokens ``present`` are left, next to each other; of none of them, the token ``nothing``."""
    ids = asked.ids
    if nothing is not None:
        ids, present = led_by(nothing, ids, present, ~present.any(1))
    return read_alone(asked, ids, present, partial(asked.read, scale=scale), batches, done)


def nothing_left(asked: Prediction) -> int | None:
    """The token that stands for a context of no tokens."""
    speller = asked.lens.speller
    return speller.filler if speller.bos is None else speller.bos


def led_by(
    token: int, ids: Int[Tensor, "pos"], present: Bool[Tensor, "copy pos"], where: Bool[Tensor, "copy"]
) -> tuple[Int[Tensor, "longer"], Bool[Tensor, "copy longer"]]:
    """The same with a token before it, which is present in some of the copies."""
    return torch.cat([ids.new_tensor([token]), ids]), torch.cat([rearrange(where, "copy -> copy 1"), present], 1)


@torch.no_grad()
def read_alone(
    asked: Prediction,
    ids: Int[Tensor, "pos"],
    present: Bool[Tensor, "copy pos"],
    read: Callable[[Float[Tensor, "some vocab"]], Float[Tensor, "some"]],
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """What is read after the tokens that are ``present`` in each copy, as if there were no others.

    Those come first, and are read at their end, where the others after them change nothing. So copies of different
    lengths run at once.
    """
    present = present.to(ids.device)
    kept = present.sum(1)
    order = (~present).to(torch.uint8).argsort(stable=True)

    def run(rows: Int[Tensor, "row"]) -> Float[Tensor, "row"]:
        ends = rearrange(kept[rows], "row -> row 1")
        found = read(asked.prompt.logits_of(ids[order[rows, : int(ends.max())]], read=ends - 1)[:, 0])
        done(len(rows))
        return found

    shortest_first = kept.argsort()
    return batches.map(run, shortest_first, present.shape[1])[shortest_first.argsort()]


@torch.no_grad()
def read_everywhere(
    asked: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale, done: Done
) -> Float[Tensor, "copy pos"]:
    """A few rows at a time, because a scale may need a second copy of their logits, in float64."""
    logits = asked.prompt.logits_from(0, read=range(len(asked)))(states)
    done(len(states))
    return torch.stack([torch.cat([asked.read(rows, scale) for rows in one.split(ROWS)]) for one in logits])
