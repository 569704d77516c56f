"""Windows over a long context: their positions, the runs for each, and one answer from several about a token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.numerics import token_count
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun

WindowMode: TypeAlias = Literal["frozen", "restrict", "chunk"]


@dataclass(frozen=True, eq=False)
class Window:
    """The positions ``span`` of a context that react in a run, and the positions ``scored`` that are scored by it.

    With ``alone``, the window runs as a prompt of its own. ``layer`` is the layer whose input the curvature is about;
    None for the embeddings. A context without windows is a single window.
    """

    whole: Prediction
    span: range
    scored: range
    alone: bool
    layer: int | None

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction that runs: the whole one, or of the window alone, which takes runs to set up."""
        return self.whole.excerpt(self.span.start, self.span.stop) if self.alone else self.whole

    @property
    def start(self) -> int:
        """The first position of the window in the prediction that runs."""
        return 0 if self.alone else self.span.start

    @property
    def stop(self) -> int | None:
        """The end of the window in the prediction that runs; None at the end of the prediction."""
        return None if self.alone or self.span == range(len(self.whole)) else self.span.stop

    @cached_property
    def states(self) -> Float[Tensor, "pos d"]:
        """The clean states of the window."""
        return self.prediction.states(self.layer)[self.start : self.stop]

    def rerun(self, place: int = 0) -> Rerun:
        """Return the prediction as a function of the window's states from a place in the window on."""
        return self.prediction.rerun(self.start + place, stop=self.stop, layer=self.layer)

    def by_start(self, positions: Sequence[int], start_cost: float | int) -> list[list[int]]:
        """Group positions of the context by the start that their runs share, as places in the window."""
        places = [position - self.span.start for position in positions]
        return self.whole.by_start(places, len(self.span), start_cost)


def windows_of(
    prediction: Prediction, spans: Sequence[range], mode: WindowMode = "frozen", layer: int | None = None
) -> list[Window]:
    """Return the windows to run: one for a single span, and where spans restrict nothing but the gate.

    A frozen window scores the tokens that lie most central in it; a window that runs alone scores all its tokens.
    """
    if len(spans) == 1 or mode == "restrict":
        spans, mode = [range(len(prediction))], "restrict"
    scored = most_central(spans) if mode == "frozen" else spans
    alone = mode == "chunk"
    return [Window(prediction, *both, alone=alone, layer=layer) for both in zip(spans, scored, strict=True)]


def spans_over(length: int, size: int, overlap: float | int) -> list[range]:
    """Cover a context with spans of one size, each the next ``size · (1 - overlap)`` further on.

    The last span is moved back to end with the context; a context no longer than one span is a single one.
    """
    if size >= length:
        return [range(length)]
    stride = token_count(1 - overlap, size, "nearest", least=1)
    starts = [*range(0, length - size, stride), length - size]
    return [range(start, start + size) for start in starts]


def most_central(spans: Sequence[range]) -> list[range]:
    """Return for every span the positions nearest to its middle (the later span in a draw), which cover the context."""
    edges = [(one.start + one.stop + after.start + after.stop + 1) // 4 for one, after in pairwise(spans)]
    return [range(*ends) for ends in pairwise([spans[0].start, *edges, spans[-1].stop])]


def averaged(
    parts: Sequence[Float[Tensor, "*kind _"]], spans: Sequence[range], length: int
) -> Float[Tensor, "*kind pos"]:
    """Average the values of every token over the spans that contain the token."""
    total = parts[0].new_zeros(*parts[0].shape[:-1], length)
    times = parts[0].new_zeros(length)
    for part, span in zip(parts, spans, strict=True):
        total[..., span.start : span.stop] += part
        times[span.start : span.stop] += 1
    return total / times


def window_gate(parts: Sequence[Float[Tensor, "part"]], spans: Sequence[range], length: int) -> Float[Tensor, "pos"]:
    """Average the windows' gates, as shares of the flow in every window, and normalise the sum to 1."""
    shares = [part / part.sum() if part.any() else torch.full_like(part, 1 / len(part)) for part in parts]
    gate = averaged(shares, spans, length)
    return gate / gate.sum()


def edge_gap(scores: Float[Tensor, "pos"], windowed: Float[Tensor, "pos"], spans: Sequence[range]) -> float:
    """Measure how much of the score windows move, of the tokens within 16 of an edge between two spans."""
    length = len(scores)
    edges = torch.tensor([edge for span in spans for edge in (span.start, span.stop) if 0 < edge < length])
    near = ((torch.arange(length)[:, None] + 0.5 - edges).abs() <= 16).any(1)
    gap = (scores / scores.sum() - windowed / windowed.sum()).abs()
    return float(gap[near.to(gap.device)].sum()) / 2
