"""DePass (Hong 2025): every hidden state split into one part per token, and the parts passed through the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import Method, Scores, refuse_hooks
from heta_lens.methods.options import full_ids, pattern_runs
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import stream_name
from heta_lens.model.norms_and_neurons import irregularity, neurons
from heta_lens.model.weights import read_or_run, vector_of
from heta_lens.prediction.activations import live
from heta_lens.prediction.prediction import Prediction

Parts: TypeAlias = Float[Tensor, "part pos d"]
Share: TypeAlias = Literal["softmax", "max", "relu", "linear", "taylor"]

SCALE = ".hook_scale"
TINY = 1e-10  # in place of a divisor that is 0
CLOSE = 1e-2  # of a stream that parts do not add up to, at most


@dataclass(frozen=True, eq=False, kw_only=True)
class DePass(Method):
    """DePass (Hong 2025): every hidden state split into one part per token, and the parts passed through the model.

    ``a_k`` is what part k adds to the target's logit (of a contrast, to the difference): above 0 speaks for it.

    Every hidden state is a sum of parts, one of each token. Attention patterns and the scales of norms are constants,
    so that parts pass through both apart; what a neuron writes is shared out among parts by what each adds to its
    input. Biases and positions are a part of their own, ``diagnostics["absorbed"]``: with the scores, it adds up to the
    logit. For a set or a function, logits count by the derivative of what is read.

    - ``share``: of a neuron: ``softmax`` of what parts add; all of it to the ``max``; in proportion to what they add,
      ``taylor``, to how far that is above the least of them, ``linear``, or above 0, ``relu``
    - ``temperature``: of that softmax
    - ``ignore_first``: give the first token, often an attention sink, no share of neurons at other positions
    """

    share: Share = "softmax"
    temperature: Annotated[float | int, AtLeast(1e-6)] = 0.1
    ignore_first: bool = True

    name: ClassVar = "depass"
    paper: ClassVar[str] = (
        "Hong et al., DePass: unified feature attributing by simple decomposed forward pass, NeurIPS 2025, "
        "arXiv:2510.18462"
    )
    family: ClassVar = "hidden_states"
    cost: ClassVar = "F, and one as wide as there are tokens"
    adapted: ClassVar = (
        "biases and positions are one more part, which also gets what relu gives to no token; the authors' code drops "
        "both; linear takes the least of the parts that add something, where their code overflows; norms that take a "
        "mean away, and MLPs without a gate"
    )

    @property
    def without_effect(self) -> Mapping[str, str]:
        none = {} if self.share == "softmax" else {"temperature": f"share={self.share!r} (which has none)"}
        all_of_them = {"ignore_first": "share='taylor' (which is shared by all tokens)"}
        return {**none, **(all_of_them if self.share == "taylor" else {})}

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_hooks(self, prediction, "splits what the model itself computes")
        unusual = irregularity(prediction.adapter)
        if unusual:
            raise ValueError(f"method={self.name!r} cannot split a model that {unusual}: choose another method")

    def work(self, prediction: Prediction) -> dict[str, int]:
        return {"forwards": pattern_runs(prediction, prediction.adapter.layers) + 1}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        clean = Clean.of(prediction)
        progress.add("forwards", self.work(prediction)["forwards"])
        parts = first_parts(clean)
        for layer in range(prediction.adapter.layers):
            parts = self._passed(parts, layer, clean)
            check_whole(parts, clean.streams[layer + 1], layer)
        last = normalised(parts[:, -1:], "ln_final", clean)[:, 0]
        added = last @ cast(Any, prediction.adapter.model).W_U.to(last)
        added = with_bias(added, cast(Any, prediction.adapter.model).b_U)
        scores = added @ logit_weights(prediction, added.sum(0))
        return Scores(scores[:-1], {"absorbed": float(scores[-1])})

    def _passed(self, parts: Parts, layer: int, clean: "Clean") -> Parts:
        """The parts after a layer; where attention and MLP stand side by side, both read what enters it."""
        adapter, at = clean.prediction.adapter, f"blocks.{layer}."
        after = parts + attention(normalised(parts, f"{at}ln1", clean), layer, clean)
        if neurons(adapter, layer) is None:
            return after
        beside = bool(getattr(adapter.model.cfg, "parallel_attn_mlp", False))
        norm = "ln2" if f"{at}ln2" in clean.scales else "ln1"
        return after + self._written(normalised(parts if beside else after, at + norm, clean), layer, clean)

    def _written(self, read: Parts, layer: int, clean: "Clean") -> Parts:
        """What neurons write, a position at a time: each has as many inputs as there are parts and neurons."""
        mlp = clean.prediction.adapter.blocks[layer].mlp
        weights_of = partial(read_or_run, mlp, dtype=clean.prediction.adapter.dtype)
        gated = getattr(clean.prediction.adapter.model.cfg, "gated_mlp", False)
        into, bias = ("W_gate", "gate"), None
        if not gated:
            into, bias = ("W_in", "in"), bias_of(mlp, "b_in", "in")
        weights = weights_of(*into, width=read.shape[-1]).to(read)
        outputs = weights_of("W_out", "out", width=weights.shape[-1]).to(read)
        written = [
            self._shares(with_bias(read[:, at] @ weights, bias), at) * clean.neurons[layer][at] @ outputs
            for at in range(read.shape[1])
        ]
        return with_bias(torch.stack(written, 1), bias_of(mlp, "b_out", "out"))

    def _shares(self, added: Float[Tensor, "part neuron"], position: int) -> Float[Tensor, "part neuron"]:
        """How what each neuron writes at a position is shared out: parts that add nothing get nothing."""
        counts = added != 0
        if self.ignore_first and self.share != "taylor":
            if not position:
                return torch.zeros_like(added).index_fill(0, added.new_zeros(1, dtype=torch.long), 1)
            counts[0] = False
        shares = SHARES[self.share](added, counts, float(self.temperature))
        shares[-1] += shares.sum(0) == 0  # what nobody gets
        return shares


def softmax_shares(added: Tensor, counts: Bool[Tensor, "part neuron"], temperature: float) -> Tensor:
    return (added / temperature).masked_fill(~counts, -torch.inf).softmax(0).nan_to_num()


def max_shares(added: Tensor, counts: Bool[Tensor, "part neuron"], temperature: float) -> Tensor:  # noqa: ARG001
    most = added.masked_fill(~counts, -torch.inf).argmax(0, keepdim=True)
    return torch.zeros_like(added).scatter(0, most, 1) * counts


def linear_shares(added: Tensor, counts: Bool[Tensor, "part neuron"], temperature: float) -> Tensor:
    """Equal shares where no part is above the least."""
    least = added.masked_fill(~counts, torch.inf).amin(0)
    above = (added - least).where(counts, 0)
    return taylor_shares(above.where(above.any(0), counts.to(added)), counts, temperature)


def relu_shares(added: Tensor, counts: Bool[Tensor, "part neuron"], temperature: float) -> Tensor:
    return taylor_shares(added.clamp(min=0), counts, temperature)


def taylor_shares(added: Tensor, counts: Bool[Tensor, "part neuron"], temperature: float) -> Tensor:  # noqa: ARG001
    kept = added * counts
    whole = kept.sum(0)
    return kept / whole.where(whole != 0, TINY)


SHARES: Mapping[Share, Callable[[Tensor, Tensor, float], Tensor]] = {
    "softmax": softmax_shares,
    "max": max_shares,
    "linear": linear_shares,
    "relu": relu_shares,
    "taylor": taylor_shares,
}


class Clean(NamedTuple):
    """What a run of the prompt gives: streams, scales of norms by their place, patterns, and what neurons write."""

    prediction: Prediction
    streams: list[Float[Tensor, "pos d"]]
    scales: Mapping[str, Float[Tensor, "pos 1"]]
    patterns: Sequence[Float[Tensor, "head query key"]]
    neurons: list[Float[Tensor, "pos neuron"]]

    @classmethod
    def of(cls, prediction: Prediction) -> "Clean":
        adapter, like = prediction.adapter, prediction.embeddings
        layers = range(adapter.layers)
        streams = [stream_name(layer, adapter.layers) for layer in (*layers, adapter.layers)]
        scales = [f"{place}{SCALE}" for place in _norms(adapter) if f"{place}{SCALE}" in adapter.points]
        written = [mlp.after for mlp in (neurons(adapter, layer) for layer in layers) if mlp]
        names = [*streams, *scales, *written]
        noted = live(adapter, full_ids(prediction), names, hooked=bool(prediction.prompt.user_hooks))
        by_name = {name: states[: len(prediction)].to(like) for name, states in zip(names, noted, strict=True)}
        by_place = {name.removesuffix(SCALE): by_name[name] for name in scales}
        return cls(
            prediction,
            [by_name[name] for name in streams],
            by_place,
            prediction.patterns,
            [by_name[name] for name in written],
        )


def _norms(adapter: ModelAdapter) -> list[str]:
    return [f"blocks.{layer}.ln{number}" for layer in range(adapter.layers) for number in (1, 2)] + ["ln_final"]


def first_parts(clean: Clean) -> Parts:
    """Each token's embedding at its own position; then what else is there, such as its position."""
    embeddings, stream = clean.prediction.embeddings, clean.streams[0]
    own = torch.eye(len(embeddings)).to(embeddings)
    parts = einsum(own, embeddings, "part pos, pos d -> part pos d")
    return torch.cat([parts, (stream - embeddings)[None]])


def with_bias(parts: Float[Tensor, "part *of"], bias: Tensor | None) -> Float[Tensor, "part *of"]:
    """A bias belongs to the last part."""
    return parts if bias is None else torch.cat([parts[:-1], parts[-1:] + bias.to(parts)])


def normalised(parts: Parts, place: str, clean: Clean) -> Parts:
    """As this norm does, with the scale that it has for all of them together."""
    if place not in clean.scales:
        return parts
    model: Any = clean.prediction.adapter.model
    norm = reduce(getattr, place.split("."), model)
    if not str(model.cfg.normalization_type).startswith("RMS"):
        parts = parts - parts.mean(-1, keepdim=True)
    scaled = parts / clean.scales[place][-parts.shape[1] :]
    weight, bias = vector_of(norm, "w", norm, "weight"), vector_of(norm, "b", norm, "bias")
    return with_bias(scaled if weight is None else scaled * weight.to(scaled), bias)


def attention(read: Parts, layer: int, clean: Clean) -> Parts:
    """What heads write, each with the pattern that it has for all parts together."""
    adapter, block, pattern = (
        clean.prediction.adapter,
        clean.prediction.adapter.blocks[layer].attn,
        clean.patterns[layer],
    )
    outputs = adapter.output_weights(layer).to(read)
    weights = read_or_run(block, "W_V", "v", read.shape[-1], adapter.dtype).to(read)
    if weights.ndim == 2:
        weights = rearrange(weights, "d (group d_head) -> group d d_head", d_head=outputs.shape[1])
    values = einsum(read, weights, "part pos d, group d d_head -> part pos group d_head")
    heads = repeat(
        with_bias(values, bias_of(block, "b_V", "v")),
        "part pos group d_head -> part pos (group share) d_head",
        share=len(pattern) // len(weights),
    )
    mixed = einsum(pattern.to(read), heads, "head query key, part key head d_head -> part query head d_head")
    return with_bias(
        einsum(mixed, outputs, "part pos head d_head, head d_head d -> part pos d"), bias_of(block, "b_O", "o")
    )


def bias_of(part: Any, name: str, projection: str) -> Tensor | None:
    """What a projection adds, if anything."""
    return vector_of(part, name, getattr(part, projection, part), "bias")


def check_whole(parts: Parts, stream: Float[Tensor, "pos d"], layer: int) -> None:
    """Refuse a model that does something else than is done to parts: they add up to the stream, or mean nothing."""
    apart = float((parts.sum(0) - stream).abs().max() / stream.abs().max())
    if not apart < CLOSE:
        raise ValueError(
            f"method='depass' cannot split this model: after layer {layer} its parts miss the residual stream by "
            f"{apart:.1%}, so something in it is not known: choose another method, such as 'attn_lrp'"
        )


def logit_weights(prediction: Prediction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
    """How much each logit counts for what is read: 1 for the target, -1 for what it is contrasted with."""
    leaf = logits.detach().requires_grad_()
    (weights,) = torch.autograd.grad(prediction.read(leaf, "logit"), leaf)
    return weights
