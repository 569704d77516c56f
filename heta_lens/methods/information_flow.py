"""What a residual stream is made of after attention: how much of it each token and head supplied (Ferrando 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.text import check_range
from heta_lens._util.work import Work
from heta_lens.methods.attention import shares
from heta_lens.methods.base import Method, Scores
from heta_lens.methods.options import full_ids, pattern_runs, value_runs
from heta_lens.model.hooks import added_names, after_attention_name, head_outputs, stream_name
from heta_lens.prediction.activations import live
from heta_lens.prediction.prediction import Prediction


class Layer(NamedTuple):
    """The residual stream before and after attention, the patterns, and what each head reads at each position."""

    before: Float[Tensor, "pos d"]
    after: Float[Tensor, "pos d"]
    pattern: Float[Tensor, "head query key"]
    read: Float[Tensor, "head key d"]


class Flow(NamedTuple):
    """All that flows through a prompt: one run notes the residual streams; the cache may have the rest."""

    prediction: Prediction
    streams: Sequence[tuple[Float[Tensor, "pos d"], Float[Tensor, "pos d"]]]
    patterns: Sequence[Float[Tensor, "head query key"]]
    values: Sequence[Float[Tensor, "pos group d_head"]]

    @classmethod
    def of(cls, prediction: Prediction) -> "Flow":
        return cls(prediction, _streams(prediction), prediction.patterns, prediction.values)

    def __getitem__(self, layer: int) -> Layer:  # type: ignore[override]
        written = head_outputs(self.values[layer], self.prediction.output_weights[layer])
        return Layer(*self.streams[layer], self.patterns[layer], written)


def flow_runs(prediction: Prediction) -> int:
    """How many forwards it takes to read a `Flow`."""
    return pattern_runs(prediction, prediction.adapter.layers) + value_runs(prediction) + 1


def _streams(prediction: Prediction) -> list[tuple[Tensor, Tensor]]:
    adapter, like = prediction.adapter, prediction.embeddings
    layers, names = range(adapter.layers), list[str]()
    between = all(after_attention_name(layer) in adapter.points for layer in layers)
    for layer in layers:
        names += [stream_name(layer, adapter.layers), after_attention_name(layer) if between else added_names(layer)[0]]
    noted = live(adapter, full_ids(prediction), names, hooked=bool(prediction.prompt.user_hooks))
    before, after = ([states[: len(prediction)].to(like) for states in noted[first::2]] for first in (0, 1))
    if between:
        return list(zip(before, after, strict=True))
    return [(states, states + added) for states, added in zip(before, after, strict=True)]


def proximity(part: Float[Tensor, "*of d"], whole: Float[Tensor, "*of d"]) -> Float[Tensor, "*of"]:
    """How much closer to the whole a part is than nothing is, by the sum of absolute differences; at least 0."""
    return (whole.abs().sum(-1) - (whole - part).abs().sum(-1)).clamp(min=0)


def parts(
    pattern: Float[Tensor, "head row key"], read: Float[Tensor, "head key d"], whole: Float[Tensor, "row d"]
) -> Float[Tensor, "head row key"]:
    """The proximity of what each row takes from each key through each head, to all that the row has."""
    wholes = repeat(whole, "row d -> row key d", key=read.shape[1])
    each = [
        proximity(einsum(weights, outputs, "row key, key d -> row key d"), wholes)
        for weights, outputs in zip(pattern, read, strict=True)  # a head at a time, since each has rows · keys vectors
    ]
    return torch.stack(each)


def summed(weights: Float[Tensor, "pos"], layer: Layer) -> Layer:
    """A layer of one row: the weighted sum of all positions, and what they take together from every key."""
    rows = rearrange(weights, "pos -> 1 pos")
    return Layer(
        rows @ layer.before,
        rows @ layer.after,
        einsum(weights, layer.pattern, "query, head query key -> head key")[:, None],
        layer.read,
    )


# ----------------------------------------------------------------------------------------------------------------- ifr


TINY = 1e-12  # to divide by, where nothing brings a position closer to what it has


@dataclass(frozen=True, eq=False, kw_only=True)
class Ifr(Method):
    """IFR, information flow routes (Ferrando 2024): what each token supplies, followed from the last layer down.

    ``a = C_1ᵀ ⋯ C_Lᵀ e_N``: ≥ 0, no direction, the same for every target; the scores sum to 1.

    Row i of C_l has the shares that each token supplies, through attention and by staying where it is, of what position
    i has after the attention of layer l: by how much closer each part is to the whole than nothing is, in absolute
    differences. A norm that follows attention in the model is not applied.

    - ``threshold``: leave out shares (of a head, from a token) that are not above it, and share out the rest again
    """

    threshold: Annotated[float | int, AtLeast(0, below=1)] = 0

    name: ClassVar = "ifr"
    paper: ClassVar[str] = (
        "Ferrando & Voita, Information flow routes: automatically interpreting language models at scale, EMNLP "
        "2024, arXiv:2403.00824"
    )
    family: ClassVar = "attention"
    cost: ClassVar = "F; 2 F more without attention in the cache"
    signed: ClassVar = False
    target_agnostic: ClassVar = True
    adapted: ClassVar = "the authors draw a graph, whose paths are weighed here; their shares are at least 1e-5 each"

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": flow_runs(prediction)}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        flow = Flow.of(prediction)
        progress.add("forwards", self.work(prediction)["forwards"])
        scores = torch.zeros_like(prediction.embeddings[:, 0])
        scores[-1] = 1
        for number in reversed(range(prediction.adapter.layers)):
            reached = scores.nonzero()[:, 0]
            rows_of = partial(edges, flow[number], threshold=self.threshold)
            batches = prediction.prompt.batches("auto", len(prediction))
            scores = scores[reached] @ batches.map(rows_of, reached, len(prediction))
        return Scores(scores)


def edges(layer: Layer, queries: Int[Tensor, "query"], threshold: float | int) -> Float[Tensor, "query key"]:
    """Shares of what these positions have after attention: of every token, and of what was there, at their own."""
    supplied = parts(layer.pattern[:, queries], layer.read, layer.after[queries])
    stayed = proximity(layer.before[queries], layer.after[queries])
    whole = (supplied.sum((0, 2)) + stayed).clamp(min=TINY)
    supplied, stayed = supplied / rearrange(whole, "query -> 1 query 1"), stayed / whole
    own = torch.eye(len(layer.before)).to(supplied)[queries]
    kept = (supplied * (supplied > threshold)).sum(0)
    return shares(kept + rearrange(stayed * (stayed > threshold), "query -> query 1") * own, own)


# --------------------------------------------------------------------------------------------------------- flash trace


Range: TypeAlias = Annotated[tuple[int, int] | None, check_range]
SMALLEST_NORM = 1e-12  # added to divisors


@dataclass(frozen=True, eq=False, kw_only=True)
class FlashTrace(Method):
    """FlashTrace (Pan 2026): how much of a span's residual streams each token supplied, over layers and over hops.

    ``a_j = Σ_layers Σ_h n_hj / (Σ_hk n_hk + r)``: ≥ 0, no direction, the same for every target.

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
            weights[thought] = hop.scores[thought] / (hop.scores[thought].sum() + SMALLEST_NORM)
            handed *= float(hop.scores[thought].sum() / (hop.scores.sum() + SMALLEST_NORM))
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
            whole = tokens.sum() + before + SMALLEST_NORM
            scores += tokens / whole
            residual += float(before / whole)
        return Supplied(scores, residual)


class Supplied(NamedTuple):
    """The sums over layers of what tokens supplied, and of what was there before attention: one a layer in all."""

    scores: Float[Tensor, "pos"]
    residual: float
