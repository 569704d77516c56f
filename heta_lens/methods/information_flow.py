"""Information flow: the shares of tokens and heads in a residual stream (IFR, FlashTrace)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.python import Lazy
from heta_lens._util.work import Work
from heta_lens.methods.attention import AttentionMethod, shares
from heta_lens.methods.base import Scores, check_range
from heta_lens.model.hooks import added_names, after_attention_name, head_outputs, stream_name
from heta_lens.prediction.cache import live
from heta_lens.prediction.prediction import Prediction

TINY = 1e-12  # added to divisors, or in place of smaller ones

Range: TypeAlias = Annotated[tuple[int, int] | None, check_range]


class Layer(NamedTuple):
    """A layer's residual stream before and after attention, its patterns, and head outputs by position."""

    before: Float[Tensor, "pos d"]
    after: Float[Tensor, "pos d"]
    pattern: Float[Tensor, "head query key"]
    read: Float[Tensor, "head key d"]


def layers_of(prediction: Prediction) -> Sequence[Layer]:
    """Return the layers, computed on access; a single run notes the residual streams."""
    adapter, count, like = prediction.adapter, prediction.layers, prediction.embeddings
    between = all(after_attention_name(layer) in adapter.points for layer in range(count))
    names = [stream_name(layer, count) for layer in range(count)]
    names += [after_attention_name(layer) if between else added_names(layer)[0] for layer in range(count)]
    noted = live(adapter, prediction.whole_ids, names, hooked=bool(prediction.user_hooks))
    streams = [states[: len(prediction)].to(like) for states in noted]
    patterns, values = prediction.patterns, prediction.values

    def layer(number: int) -> Layer:
        before, after = streams[number], streams[count + number]
        read = head_outputs(values[number], prediction.output_weights[number])
        return Layer(before, after if between else before + after, patterns[number], read)

    return Lazy(count, layer)


def proximity(part: Float[Tensor, "*of d"], whole: Float[Tensor, "*of d"]) -> Float[Tensor, "*of"]:
    """Compute how much closer to the whole a part is than nothing is, by absolute differences; at least 0."""
    return (whole.abs().sum(-1) - (whole - part).abs().sum(-1)).clamp(min=0)


def parts(
    pattern: Float[Tensor, "head row key"], read: Float[Tensor, "head key d"], whole: Float[Tensor, "row d"]
) -> Float[Tensor, "head row key"]:
    """Compute proximities of head outputs to the rows: part (h, i, j) is what row i takes from key j by head h."""
    wholes = whole[:, None].expand(-1, read.shape[1], -1)
    heads = zip(pattern, read, strict=True)  # one at a time, since each has rows · keys vectors
    return torch.stack(
        [proximity(einsum(weights, vectors, "row key, key d -> row key d"), wholes) for weights, vectors in heads]
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class InformationFlow(AttentionMethod):
    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=prediction.pattern_runs(prediction.layers) + prediction.value_runs + 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class Ifr(InformationFlow):
    """IFR, information flow routes (Ferrando 2024): the supply of every token, followed from the last layer down.

    ``a = C_1ᵀ ⋯ C_Lᵀ e_N``: ≥ 0, no direction, the same for every target; the scores sum to 1.

    Row i of C_l has the share of every token in the state of position i after the attention of layer l, by attention
    and by the residual stream: how much closer the token's part is to the state than a zero vector is, in L1 distance.
    A norm that follows attention in the model is not applied.

    - ``threshold``: leave out shares (of a head, from a token) of at most this size, and normalise the rest again
    """

    threshold: Annotated[float | int, AtLeast(0, below=1)] = 0

    name: ClassVar = "ifr"
    paper: ClassVar[str] = (
        "Ferrando & Voita, Information flow routes: automatically interpreting language models at scale, EMNLP "
        "2024, arXiv:2403.00824"
    )
    cost: ClassVar = "F; 2 F more without attention in the cache"
    adapted: ClassVar = "the authors draw a graph, whose paths are weighed here; their shares are at least 1e-5 each"

    def explain(self, prediction: Prediction) -> Scores:
        batches = prediction.batches("auto")
        scores = torch.zeros_like(prediction.embeddings[:, 0])
        scores[-1] = 1
        for layer in reversed(layers_of(prediction)):
            reached = scores.nonzero()[:, 0]
            rows_of = partial(edges, layer, threshold=self.threshold)
            scores = scores[reached] @ batches.map(rows_of, reached, len(prediction))
        return Scores(scores)


def edges(layer: Layer, queries: Int[Tensor, "query"], threshold: float | int) -> Float[Tensor, "query key"]:
    """Return every token's share of the states of these positions after attention, and the residual's share."""
    supplied = parts(layer.pattern[:, queries], layer.read, layer.after[queries])
    stayed = proximity(layer.before[queries], layer.after[queries])
    whole = (supplied.sum((0, 2)) + stayed).clamp(min=TINY)
    supplied, stayed = supplied / rearrange(whole, "query -> 1 query 1"), stayed / whole
    own = torch.eye(len(layer.before)).to(supplied)[queries]
    kept = (supplied * (supplied > threshold)).sum(0)
    kept = kept + rearrange(stayed * (stayed > threshold), "query -> query 1") * own
    return shares(kept, own)


@dataclass(frozen=True, eq=False, kw_only=True)
class FlashTrace(InformationFlow):
    """FlashTrace (Pan 2026): the shares of tokens in a span's residual streams, over layers and hops.

    ``a_j = Σ_layers Σ_h n_hj / (Σ_hk n_hk + r)``: ≥ 0, no direction, the same for every target.

    The residual streams of the explained positions after attention are summed. n_hj is the proximity of token j's part
    through head h to the sum, and r the proximity of the streams before attention: how much closer the part is to the
    sum than a zero vector is, in L1 distance. Scores are not followed down the layers: the state of a position counts
    as its token at every layer. A norm that follows attention in the model is not applied.

    - ``answer``: the range ``(start, stop)`` of positions to explain together, whose tokens, and those after them, get
      0; None is the last position of the context alone
    - ``reasoning``: the range of positions of what the model wrote before its answer, whose tokens get 0: their scores
      become the weights of their positions in the next hop. The range of ``answer`` again, for all that the model
      wrote, gives the scores of ``FlashTrace.trace`` in the authors' package, which leaves out commas, full stops and
      blanks
    - ``hops``: the number of times that the scores of the reasoning become weights
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
    cost: ClassVar = "F; 2 F more, and for each hop, without attention in the cache"
    adapted: ClassVar = "value biases count; without an answer, what predicts is explained, not the token itself"

    @property
    def without_effect(self) -> Mapping[str, str]:
        return {"hops": "reasoning=None (which has nothing to hand on)"} if self.reasoning is None else {}

    def work(self, prediction: Prediction) -> Work:
        again = 0 if self.reasoning is None else self.hops
        return super().work(prediction) + Work(again * prediction.pattern_runs(prediction.layers))

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        for name, span in (("answer", self.answer), ("reasoning", self.reasoning)):
            if span is not None and span[1] > len(prediction):
                raise ValueError(f"{name}={span} reaches beyond the context, which ends at {len(prediction)}")
        answer, reasoning = (span and tuple(span) for span in (self.answer, self.reasoning))
        if answer and reasoning and reasoning != answer and reasoning[1] > answer[0]:
            raise ValueError(f"reasoning={self.reasoning} must end before answer={self.answer} begins, or equal it")

    def explain(self, prediction: Prediction) -> Scores:
        layers = layers_of(prediction)
        sinks = torch.zeros_like(prediction.embeddings[:, 0])
        sinks[slice(*self.answer) if self.answer else slice(-1, None)] = 1
        hop, residual = self._supplied(layers, sinks)
        scores, facts = hop.clone(), dict[str, Any](residual=residual)
        if self.reasoning is not None:
            thought, handed, facts["handed_on"] = slice(*self.reasoning), 1.0, []
            for _ in range(self.hops):
                weights = torch.zeros_like(hop)
                weights[thought] = hop[thought] / (hop[thought].sum() + TINY)
                handed *= float(hop[thought].sum() / (hop.sum() + TINY))
                facts["handed_on"].append(handed)
                hop, _ = self._supplied(layers, weights)
                scores += handed * hop
            scores[thought] = 0
        if self.answer is not None:
            scores[self.answer[0] :] = 0
        return Scores(scores, facts)

    def _supplied(self, layers: Sequence[Layer], sinks: Float[Tensor, "pos"]) -> tuple[Float[Tensor, "pos"], float]:
        """Sum over layers the tokens' and the residual's shares of the weighted sum of the sinks, one per layer."""
        scores, residual = torch.zeros_like(sinks), 0.0
        for layer in layers:
            before, after = (sinks[None] @ states for states in (layer.before, layer.after))
            pattern = einsum(sinks, layer.pattern, "query, head query key -> head key")[:, None]
            tokens = parts(pattern, layer.read, after)[:, 0]
            tokens = tokens.masked_fill(tokens < self.threshold, 0).sum(0)
            stayed = proximity(before, after)[0]
            whole = tokens.sum() + stayed + TINY
            scores += tokens / whole
            residual += float(stayed / whole)
        return scores, residual
