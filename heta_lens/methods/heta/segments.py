"""Segments: what is explained at once — a whole context, or one of the windows that stand for it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.divergence import Divergence
from heta_lens._util.target_kinds import members, sides
from heta_lens._util.work_counting import Done
from heta_lens.methods.heta.blockwise_hessian import BlockwiseHessian
from heta_lens.methods.heta.hessian import HessianOperator, differentiate, gauss_newton, hessian, uncounted
from heta_lens.methods.heta.information import Information, Logits, Reference, information
from heta_lens.methods.heta.random_probes import rademacher
from heta_lens.methods.heta.second_derivative_check import check_twice_differentiable
from heta_lens.methods.heta.windows import Window, most_central
from heta_lens.model.batching import MASKED, SHORT, Batches
from heta_lens.model.closed_form_hooks import closed_form_hooks
from heta_lens.prediction.masking import Mask
from heta_lens.prediction.prediction import Prediction

WindowMode: TypeAlias = Literal["frozen", "restrict", "chunk"]


@dataclass(frozen=True, eq=False)
class Segment:
    """A window of a prediction's context, and the positions in it (``scored``) whose scores are taken from here.

    ``alone`` makes it a prompt of its own, with nothing around it. ``layer`` is where the curvature reads states; None
    for the embeddings.
    """

    whole: Prediction
    window: Window
    scored: Window
    alone: bool
    layer: int | None

    @cached_property
    def prediction(self) -> Prediction:
        """What runs: the same prediction, or of the window alone, which costs runs to set up."""
        return self.whole.alone(*self.window) if self.alone else self.whole

    @cached_property
    def start(self) -> int:
        """Where the window begins in what runs."""
        return 0 if self.alone else self.window.start

    @cached_property
    def stop(self) -> int | None:
        """Where it ends; None, if that is the end."""
        return None if self.alone or self.window == (0, len(self.whole)) else self.window.stop

    @property
    def window_range(self) -> range:
        return range(*self.window)

    @property
    def scored_range(self) -> range:
        return range(*self.scored)

    @property
    def own(self) -> slice:
        """The scored positions, as places in the window."""
        return slice(self.scored.start - self.window.start, self.scored.stop - self.window.start)

    @cached_property
    def width(self) -> int:
        return self.whole.embeddings.shape[1]

    @cached_property
    def states(self) -> Float[Tensor, "pos d"]:
        return self.prediction.states(self.layer)[self.start : self.stop]

    def by_start(self, positions: Sequence[int], start_cost: float | int) -> list[list[int]]:
        """These positions of the context, as places in the window, by the runs they share."""
        places = [position - self.window.start for position in positions]
        return self.prediction.prompt.by_start(places, len(self.states), start_cost)

    def expected_by_start(self, start_cost: float | int) -> list[list[int]]:
        """All scored positions, as far as they can be known without setting anything up."""
        places = [*range(self.own.start, self.own.stop)]
        return self.whole.prompt.by_start(places, len(self.window_range), start_cost)

    @property
    def restarts(self) -> bool:
        """Whether runs that begin later save what is before them."""
        return self.prediction.prompt.kept is not None

    @property
    def may_restart(self) -> bool:
        """The same, as far as it can be known without setting anything up."""
        return self.whole.prompt.kept is not None and len(self.window_range) > SHORT

    def hessian_from(self, batches: Batches, done: Done, place: int, *, checkpoint: bool = False) -> HessianOperator:
        """The Hessian of g from a place in the window on; with ``checkpoint``, of one block's graph at a time."""
        if checkpoint and self._first_block < self.prediction.adapter.layers - 1:
            return self._blockwise_from(batches, done, place)
        objective = self.prediction.objective_from(self.start + place, self.stop, self.layer)
        with self._in_closed_form():
            return hessian(objective, self.states[place:], batches, done)

    @property
    def _first_block(self) -> int:
        return self.layer or 0

    def _blockwise_from(self, batches: Batches, done: Done, place: int) -> BlockwiseHessian:
        prediction, start, last = self.prediction, self.start + place, self.prediction.adapter.layers - 1
        own = [self.layer, *range(self._first_block + 1, last + 1)]  # where each block is entered, and the top
        entering = [prediction.states(layer)[start:] for layer in own]
        top = prediction.objective_from(start, layer=last)

        def block(layer: int | None, states: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
            with self._in_closed_form():
                return prediction.prompt.through_block(layer, start, len(prediction), states)

        def top_hessian() -> HessianOperator:
            with self._in_closed_form():
                return hessian(top, entering[-1], batches, uncounted)

        def top_gradient() -> Float[Tensor, "pos d"]:
            return differentiate(top, entering[-1], again=False)[1]

        blocks = [partial(block, layer) for layer in own[:-1]]
        return BlockwiseHessian(blocks, entering, top_hessian, top_gradient, batches, done)

    def gauss_newton_from(self, batches: Batches, done: Done, place: int) -> HessianOperator:
        """The same of its Gauss–Newton form."""
        log_probs = self.prediction.log_probs_from(self.start + place, self.stop, self.layer)
        with self._in_closed_form():
            return gauss_newton(lambda leaf: log_probs(leaf[None])[0], self.states[place:], batches, done)

    def _in_closed_form(self) -> AbstractContextManager[None]:
        """Known parts have derivatives in closed form, unless the user's hooks may have changed them."""
        prediction = self.prediction
        hooks = [] if prediction.prompt.user_hooks else closed_form_hooks(prediction.adapter)
        return prediction.adapter.hooked(hooks, every=False)

    def check(self, seed: int, batch: int | Literal["auto"]) -> None:
        """Try one probe, on the last token, where a run is shortest."""
        prediction, place = self.prediction, len(self.prediction) - 1
        last = prediction.states(self.layer)[-1:]
        probe = rademacher(seed, place, 1, last.shape[1]).to(last)
        # Half precision and rounded activations cannot tell the steps apart; and hooks may change gradients.
        adapter = prediction.adapter
        compare = adapter.dtype.itemsize >= 4 and not adapter.quantised and not prediction.prompt.user_hooks
        log_probs = prediction.log_probs_from(place, layer=self.layer)
        # Against another token: where log p(target) is nearly 0, its gradient is too small to be compared.
        first, second = opposed(prediction)

        def objective(copies: Float[Tensor, "copy 1 d"]) -> Float[Tensor, "copy"]:
            values = log_probs(copies)
            return values[:, first] - values[:, second]

        check_twice_differentiable(objective, last, probe, compare, prediction.prompt.batches(batch, 1))

    def gradient(self) -> Float[Tensor, "pos d"]:
        objective = self.prediction.objective_from(self.start, self.stop, self.layer)
        return differentiate(objective, self.states, again=False)[1]


def segments_of(
    prediction: Prediction, spans: Sequence[Window], mode: WindowMode = "frozen", layer: int | None = None
) -> list[Segment]:
    """One segment for a single window, and for windows that restrict nothing but the gate; else one for each.

    A frozen window scores the tokens that lie most central in it; one that is a prompt of its own scores all of them.
    """
    if len(spans) == 1 or mode == "restrict":
        return [whole_segment(prediction, layer)]
    scored = most_central(spans) if mode == "frozen" else spans
    return [
        Segment(prediction, window, own, alone=mode == "chunk", layer=layer)
        for window, own in zip(spans, scored, strict=True)
    ]


def whole_segment(prediction: Prediction, layer: int | None = None) -> Segment:
    """The whole context as one."""
    whole = Window(0, len(prediction))
    return Segment(prediction, whole, whole, alone=False, layer=layer)


def opposed(prediction: Prediction) -> tuple[int, int]:
    """The likeliest token of the target, and of what it is contrasted with; of a function, the likeliest two."""
    if callable(prediction.target):
        first, second = prediction.log_probs.topk(2).indices.tolist()
        return first, second
    first, *second = [
        max(members(tokens), key=lambda token: float(prediction.log_probs[token]))
        for tokens in sides(prediction.target)
    ]
    return first, second[0] if second else rival(prediction)


def rival(prediction: Prediction) -> int:
    """The most likely token that is not the target, or not in it."""
    own = [token for tokens in sides(prediction.target) for token in members(tokens)]
    likeliest = prediction.log_probs.topk(len(own) + 1).indices.tolist()
    return next(token for token in likeliest if token not in own)


@torch.no_grad()
def masked_information(
    segment: Segment,
    targets: Sequence[Prediction],
    *,
    mask: Mask,
    divergence: Divergence,
    batches: Batches,
    done: Done,
    floor: bool = False,
) -> Information:
    """Each token that a segment scores, masked in turn for all targets at once; a window is one target's own.

    Several targets are of one prompt, the longest context is the segment's and the last.
    """
    prediction = segment.prediction
    targets = targets if len(targets) > 1 else [prediction]
    lengths = [len(target) for target in targets]
    moved = information(
        partial(_logits_from, segment, lengths),
        prediction.embeddings[segment.start : segment.stop],
        prediction.mask_vector(mask),
        [Reference(target.log_probs, target.value, target.objective) for target in targets],
        divergence,
        lengths=[length - segment.start for length in lengths],
        by_start=segment.by_start(segment.scored_range, MASKED),
        batches=batches,
        done=done,
        floor=floor,
    )
    return Information(*(part[:, segment.own] for part in moved))


def _logits_from(segment: Segment, lengths: Sequence[int], place: int) -> Logits:
    """What is predicted after contexts of these lengths, if they reach a place, by the states from there on."""
    start = segment.start + place
    read = [length - 1 for length in lengths if length > start]
    return segment.prediction.prompt.logits_from(start, read=read, stop=segment.stop)
