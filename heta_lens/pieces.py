"""Pieces: what is explained at once — a whole context, or one of the windows that stand for it."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from jaxtyping import Float
from torch import Tensor

from heta_lens.hessian import Columns, ColumnsFrom, differentiate, gauss_newton, hessian
from heta_lens.prediction import Prediction
from heta_lens.windows import Window, windows

WindowMode: TypeAlias = Literal["frozen", "restrict", "chunk"]


class Piece(NamedTuple):
    """States at ``start:stop`` of a prediction, which are ``window`` of the whole context.

    ``layer`` is where the curvature reads them; None for the embeddings.
    """

    window: Window
    prediction: Prediction
    start: int
    stop: int | None
    layer: int | None

    @property
    def states(self) -> Float[Tensor, "pos d"]:
        return self.prediction.states(self.layer)[self.start : self.stop]

    def columns_from(self, gauss: bool, batch: int, done: Callable[[int], None]) -> ColumnsFrom:
        """The Hessian of g, or its Gauss–Newton form, from a position of the piece on."""

        def columns(at: int) -> Columns:
            where, states = (self.start + at, self.stop, self.layer), self.states[at:]
            if not gauss:
                return hessian(self.prediction.objective_from(*where), states, batch, done)
            log_probs = self.prediction.log_probs_from(*where)
            return gauss_newton(lambda leaf: log_probs(leaf[None])[0], states, batch, done)

        return columns

    def gradient(self) -> Float[Tensor, "pos d"]:
        objective = self.prediction.objective_from(self.start, self.stop, self.layer)
        return differentiate(objective, self.states, again=False)[1]


def pieces(
    prediction: Prediction, size: int | None, overlap: float, mode: WindowMode, layer: int | None
) -> list[Piece]:
    """One piece for no window, and for one that restricts nothing but the gate; else one a window."""
    n = len(prediction)
    if size is None or mode == "restrict" or size >= n:
        return [Piece(Window(0, n), prediction, 0, None, layer)]
    spans = windows(n, size, overlap)
    if mode == "frozen":
        return [Piece(span, prediction, *span, layer) for span in spans]
    return [Piece(span, prediction.alone(*span), 0, None, layer) for span in spans]
