"""FlashTrace (Pan 2026): how much of a span's residual streams each token supplied, over layers and over hops."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.sentence_spans import check_range
from heta_lens._util.work_counting import Work
from heta_lens.methods.attention.information_flow import Flow, flow_runs, parts, proximity, summed
from heta_lens.methods.base import Method, Scores
from heta_lens.prediction.prediction import Prediction

Range: TypeAlias = Annotated[tuple[int, int] | None, check_range]
TINY = 1e-12  # added to divisors


@dataclass(frozen=True, eq=False, kw_only=True)
class FlashTrace(Method):
    """``a_j = Σ_layers Σ_h n_hj / (Σ_hk n_hk + r)``: ≥ 0, no direction, the same for every target.

    Of the residual streams that some positions have after attention, summed, n_hj is how much token j supplied through
    head h, and r what was there before: how much closer each is to that sum than nothing is, by absolute differences.
    Nothing is followed down the layers: what a position holds at any layer counts as its token. A norm that follows
    attention in the model is not applied.

    - ``answer``: the range ``(start, stop)`` of positions to explain together, whose tokens, and those after them, get
      0; None is the last position of the context alone
    - ``reasoning``: the range of positions of what the model wrote before its answer, whose tokens get 0: their scores
      are handed on, as weights of their positions
    - ``hops``: how often
    - ``threshold``: leave out proximities below it
    """

    answer: Range = None
    reasoning: Range = None
    hops: Annotated[int, AtLeast(0, whole=True)] = 1
    threshold: Annotated[float | int, AtLeast(0)] = 0

    name: ClassVar = "flash_trace"
    paper: ClassVar[str] = (
        "Pan et al., Towards long-horizon interpretability: efficient and faithful multi-token attribution for "
        "reasoning LLMs, ICML 2026, arXiv:2602.01914"
    )
    family: ClassVar = "attention"
    cost: ClassVar = "F; 2 F more without attention in the cache"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "value biases count; without an answer, what predicts is explained, not the token itself"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {"hops": "reasoning=None (which has nothing to hand on)"} if self.reasoning is None else {}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for name, span in (("answer", self.answer), ("reasoning", self.reasoning)):
            if span is not None and span[1] > len(prediction):
                raise ValueError(f"{name}={span} reaches beyond the context, which ends at {len(prediction)}")
        if self.answer and self.reasoning and self.reasoning[1] > self.answer[0]:
            raise ValueError(f"reasoning={self.reasoning} must end before answer={self.answer} begins")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": flow_runs(prediction)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        flow = Flow.of(prediction)
        progress.add("forwards", self.work(prediction)["forwards"])
        base = self._supplied(flow, self._sinks(prediction))
        if self.reasoning is None:
            return Scores(self._observed(base.scores), {"residual": base.residual})
        thought = slice(*self.reasoning)
        scores, handed, hop = base.scores.clone(), 1.0, base
        shares = list[float]()
        for _ in range(self.hops):
            weights = torch.zeros_like(hop.scores)
            weights[thought] = hop.scores[thought] / (hop.scores[thought].sum() + TINY)
            handed *= float(hop.scores[thought].sum() / (hop.scores.sum() + TINY))
            shares.append(handed)
            hop = self._supplied(flow, weights)
            scores += handed * hop.scores
        return Scores(self._observed(scores), {"residual": base.residual, "handed_on": shares})

    def _sinks(self, prediction: Prediction) -> Float[Tensor, "pos"]:
        sinks = torch.zeros_like(prediction.embeddings[:, 0])
        sinks[slice(*self.answer) if self.answer else slice(-1, None)] = 1
        return sinks

    def _observed(self, scores: Float[Tensor, "pos"]) -> Float[Tensor, "pos"]:
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        for span in (self.reasoning, self.answer and (self.answer[0], len(scores))):
            hidden[slice(*span) if span else slice(0)] = True
        return scores.masked_fill(hidden, 0)

    def _supplied(self, flow: Flow, sinks: Float[Tensor, "pos"]) -> "Supplied":
        scores, residual = torch.zeros_like(sinks), 0.0
        for number in range(flow.prediction.adapter.layers):
            layer = summed(sinks, flow[number])
            tokens = parts(layer.pattern, layer.read, layer.after)[:, 0]
            tokens = tokens.masked_fill(tokens < self.threshold, 0).sum(0)
            before = proximity(layer.before, layer.after)[0]
            whole = tokens.sum() + before + TINY
            scores += tokens / whole
            residual += float(before / whole)
        return Supplied(scores, residual)


class Supplied(NamedTuple):
    """The sums over layers of what tokens supplied, and of what was there before attention: one a layer in all."""

    scores: Float[Tensor, "pos"]
    residual: float
