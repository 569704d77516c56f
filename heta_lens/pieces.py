"""Pieces: what is explained at once — a whole context, or one of the windows that stand for it."""

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens.batches import MASKED, Batches
from heta_lens.curvature import rademacher
from heta_lens.divergence import Divergence
from heta_lens.hessian import Columns, ColumnsFrom, check_twice_differentiable, differentiate, gauss_newton, hessian
from heta_lens.information import Information, LogProbs, information
from heta_lens.masking import Mask
from heta_lens.prediction import Lazy, Prediction
from heta_lens.progress import Done
from heta_lens.windows import Window, most_central

WindowMode: TypeAlias = Literal["frozen", "restrict", "chunk"]


class Piece(NamedTuple):
    """States at ``start:stop`` of a prediction, which are ``window`` of the whole context; ``scored`` are its own.

    ``layer`` is where the curvature reads them; None for the embeddings.
    """

    window: Window
    scored: Window
    prediction: Prediction
    start: int
    stop: int | None
    layer: int | None

    @property
    def states(self) -> Float[Tensor, "pos d"]:
        return self.prediction.states(self.layer)[self.start : self.stop]

    def groups(self, positions: Sequence[int], start_cost: float | int) -> list[list[int]]:
        """These positions of the context, as places in the piece, by the runs they share."""
        places = [position - self.window.start for position in positions]
        return self.prediction.prompt.groups(places, len(self.states), start_cost)

    def columns_from(self, gauss: bool, batches: Batches, done: Done) -> ColumnsFrom:
        """The Hessian of g, or its Gauss–Newton form, from a position of the piece on."""

        def columns(at: int) -> Columns:
            where, states = (self.start + at, self.stop, self.layer), self.states[at:]
            if not gauss:
                return hessian(self.prediction.objective_from(*where), states, batches, done)
            log_probs = self.prediction.log_probs_from(*where)
            return gauss_newton(lambda leaf: log_probs(leaf[None])[0], states, batches, done)

        return columns

    def check(self, seed: int) -> None:
        """Try one probe, on the last token, where a run is shortest."""
        asked, place = self.prediction, len(self.prediction) - 1
        last = asked.states(self.layer)[-1:]
        probe = rademacher(seed, place, 1, last.shape[1]).to(last)
        # Half precision cannot tell the steps apart; and hooks may stop or change gradients as they like.
        compare = asked.lens.token_weights.dtype.itemsize >= 4 and not asked.prompt.user_hooks
        log_probs = asked.log_probs_from(place, layer=self.layer)
        # Against another token: where log p(target) is nearly 0, its gradient is too small to be compared.
        first, second = asked.target if isinstance(asked.target, tuple) else (asked.target, rival(asked))

        def objective(leaf: Float[Tensor, "1 d"]) -> Float[Tensor, ""]:
            found = log_probs(leaf[None])[0]
            return found[first] - found[second]

        check_twice_differentiable(objective, last, probe, compare)

    def gradient(self) -> Float[Tensor, "pos d"]:
        objective = self.prediction.objective_from(self.start, self.stop, self.layer)
        return differentiate(objective, self.states, again=False)[1]


def pieces(prediction: Prediction, spans: Sequence[Window], mode: WindowMode, layer: int | None) -> Sequence[Piece]:
    """One piece for a single window, and for windows that restrict nothing but the gate; else one for each.

    A frozen window scores the tokens that lie most central in it; one that is a prompt of its own scores all of them.
    """
    if len(spans) == 1 or mode == "restrict":
        whole = Window(0, len(prediction))
        return [Piece(whole, whole, prediction, 0, None, layer)]
    if mode == "frozen":
        both = zip(spans, most_central(spans), strict=True)
        return [Piece(span, own, prediction, *span, layer) for span, own in both]

    @cache  # each costs runs; what all of them keep is at most what two such contexts would
    def alone(k: int) -> Piece:
        return Piece(spans[k], spans[k], prediction.alone(*spans[k]), 0, None, layer)

    return Lazy(len(spans), alone)


def rival(prediction: Prediction) -> int:
    """The most likely token that is not the target."""
    first, second = prediction.log_probs.topk(2).indices.tolist()
    return second if prediction.target == first else first


@torch.no_grad()
def masked_information(
    piece: Piece,
    targets: Sequence[Prediction],
    *,
    mask: Mask,
    divergence: Divergence,
    batches: Batches,
    done: Done,
) -> Information:
    """Each token that a piece scores, masked in turn for all targets at once; a window is one target's own.

    Several targets are of one prompt, the longest context is the piece's and the last.
    """
    asked = piece.prediction
    targets = targets if len(targets) > 1 else [asked]

    def log_probs_from(at: int) -> LogProbs:
        start = piece.start + at
        read = [len(target) - 1 for target in targets if len(target) > start]
        return asked.prompt.log_probs_from(start, read=read, stop=piece.stop)

    found = information(
        log_probs_from,
        asked.embeddings[piece.start : piece.stop],
        asked.mask_vector(mask),
        torch.stack([target.log_probs for target in targets]),
        [target.objective for target in targets],
        divergence,
        lengths=[len(target) - piece.start for target in targets],
        groups=piece.groups(range(*piece.scored), MASKED),
        batches=batches,
        done=done,
    )
    own = slice(piece.scored.start - piece.window.start, piece.scored.stop - piece.window.start)
    return Information(*(part[:, own] for part in found))
