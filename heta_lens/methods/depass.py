"""DePass (Hong 2025): hidden states split into one part per token, and the parts passed through the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import AtLeast
from heta_lens._util.work import Work
from heta_lens.methods.base import OF_LOGITS, Method, Scores, refuse_hooks
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import stream_name
from heta_lens.model.norms_and_neurons import irregularity, neurons
from heta_lens.model.weights import read_or_run, vector_of
from heta_lens.prediction.cache import live
from heta_lens.prediction.prediction import Prediction

Parts: TypeAlias = Float[Tensor, "part pos d"]

SCALE = ".hook_scale"
CLOSE = 1e-2  # of a stream that parts do not add up to, at most


@dataclass(frozen=True, eq=False, kw_only=True)
class DePass(Method):
    """DePass (Hong 2025): every hidden state split into one part per token, and the parts passed through the model.

    ``a_k`` is what part k adds to the target's logit (of a contrast, to the difference): above 0 speaks for it.

    Every hidden state is a sum of parts, one of each token. Attention patterns and the scales of norms are constants,
    so that each part passes through them alone; the output of a neuron is divided among the parts by a softmax of what
    each part adds to the neuron's input. Biases and positions are a part of their own, ``diagnostics["absorbed"]``:
    with the scores, it adds up to the logit. For a set or a function, logits count by the derivative of what is read.

    - ``temperature``: the temperature of the softmax
    - ``ignore_first``: give the first token, often an attention sink, no share of neurons at other positions
    """

    temperature: Annotated[float | int, AtLeast(1e-6)] = 0.1
    ignore_first: bool = True

    name: ClassVar = "depass"
    paper: ClassVar[str] = (
        "Hong et al., DePass: unified feature attributing by simple decomposed forward pass, NeurIPS 2025, "
        "arXiv:2510.18462"
    )
    family: ClassVar = "hidden_states"
    kinds: ClassVar = OF_LOGITS
    unit: ClassVar = "logits"
    cost: ClassVar = "F, and one as wide as there are tokens"
    adapted: ClassVar = (
        "biases and positions are one more part, which the authors' code drops; norms that take a mean away, and MLPs "
        "without a gate"
    )

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        refuse_hooks(self, prediction, "splits what the model itself computes")
        if unusual := irregularity(prediction.adapter):
            raise ValueError(f"method={self.name!r} cannot split a model that {unusual}: choose another method")

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=prediction.pattern_runs(prediction.layers) + 1)

    def states_held(self, tokens: int) -> int:
        return 5 * (tokens + 1) * tokens  # parts, and what they are while they pass through a layer

    def explain(self, prediction: Prediction) -> Scores:
        clean, model, depth = Clean.of(prediction), cast(Any, prediction.model), prediction.layers
        own, embeddings = torch.eye(len(prediction)).to(prediction.embeddings), prediction.embeddings
        parts = einsum(own, embeddings, "part pos, pos d -> part pos d")
        positions = clean.states[stream_name(0, depth)] - embeddings
        parts = torch.cat([parts, positions[None]])  # the last part, which gets biases too
        for layer in range(depth):
            parts = self._passed(parts, layer, clean)
            check_whole(parts, clean.states[stream_name(layer + 1, depth)], layer)
        last = normalised(parts[:, -1:], "ln_final", clean)[:, 0]
        logits = with_bias(last @ model.W_U.to(last), model.b_U)
        leaf = logits.sum(0).detach().requires_grad_()
        (weights,) = torch.autograd.grad(prediction.read(leaf, "logit"), leaf)  # of each logit in what is read
        scores = logits @ weights
        return Scores(scores[:-1], {"absorbed": float(scores[-1])})

    def _passed(self, parts: Parts, layer: int, clean: "Clean") -> Parts:
        """Return the parts after a layer; attention and MLP in parallel read the same states."""
        adapter, at = clean.prediction.adapter, f"blocks.{layer}."
        after = parts + attention(normalised(parts, f"{at}ln1", clean), layer, clean)
        if (mlp := neurons(adapter, layer)) is None:
            return after
        parallel = bool(getattr(adapter.model.cfg, "parallel_attn_mlp", False))
        norm = "ln2" if f"{at}ln2{SCALE}" in clean.states else "ln1"
        read = normalised(parts if parallel else after, at + norm, clean)
        return after + self._written(read, adapter, layer, clean.states[mlp.after])

    def _written(self, read: Parts, adapter: ModelAdapter, layer: int, clean: Float[Tensor, "pos neuron"]) -> Parts:
        """Return the outputs of neurons, computed position by position, since a position has parts · neurons inputs."""
        mlp = adapter.model.blocks[layer].mlp
        weights_of = partial(read_or_run, mlp, dtype=adapter.dtype)
        gated = getattr(adapter.model.cfg, "gated_mlp", False)
        name, projection = ("W_gate", "gate") if gated else ("W_in", "in")
        bias = None if gated else bias_of(mlp, "b_in", "in")
        weights = weights_of(name, projection, width=read.shape[-1]).to(read)
        outputs = weights_of("W_out", "out", width=weights.shape[-1]).to(read)
        written = [
            self._shares(with_bias(read[:, at] @ weights, bias), at) * clean[at] @ outputs
            for at in range(read.shape[1])
        ]
        return with_bias(torch.stack(written, 1), bias_of(mlp, "b_out", "out"))

    def _shares(self, added: Float[Tensor, "part neuron"], position: int) -> Float[Tensor, "part neuron"]:
        """Return the shares of parts in every neuron's output at a position; parts that add nothing get 0."""
        counts = added != 0
        if self.ignore_first:
            if not position:
                return torch.zeros_like(added).index_fill(0, added.new_zeros(1, dtype=torch.long), 1)
            counts[0] = False
        weights = (added / self.temperature).masked_fill(~counts, -torch.inf).softmax(0).nan_to_num()
        weights[-1] += weights.sum(0) == 0  # what no token gets
        return weights


class Clean(NamedTuple):
    """Attention patterns of the context; streams, scales of norms and outputs of neurons by the name of the hook."""

    prediction: Prediction
    patterns: Sequence[Float[Tensor, "head query key"]]
    states: Mapping[str, Float[Tensor, "pos _"]]

    @classmethod
    def of(cls, prediction: Prediction) -> "Clean":
        adapter, layers = prediction.adapter, range(prediction.layers)
        scales = [f"blocks.{layer}.ln{number}{SCALE}" for layer in layers for number in (1, 2)] + ["ln_final" + SCALE]
        names = [stream_name(layer, len(layers)) for layer in range(len(layers) + 1)]
        names += [name for name in scales if name in adapter.points]
        names += [mlp.after for layer in layers if (mlp := neurons(adapter, layer))]
        noted = zip(names, live(adapter, prediction.ids, names, hooked=False), strict=True)
        return cls(prediction, prediction.patterns, {name: states.to(prediction.embeddings) for name, states in noted})


def with_bias(parts: Float[Tensor, "part *of"], bias: Tensor | None) -> Float[Tensor, "part *of"]:
    """Add a bias to the last part."""
    return parts if bias is None else torch.cat([parts[:-1], parts[-1:] + bias.to(parts)])


def normalised(parts: Parts, place: str, clean: Clean) -> Parts:
    """Normalise parts by the norm at this place, with the scale of the whole stream."""
    scale = clean.states.get(place + SCALE)
    if scale is None:
        return parts
    model: Any = clean.prediction.model
    norm = reduce(getattr, place.split("."), model)
    if not str(model.cfg.normalization_type).startswith("RMS"):
        parts = parts - parts.mean(-1, keepdim=True)
    scaled = parts / scale[-parts.shape[1] :]
    weight, bias = vector_of(norm, "w", norm, "weight"), vector_of(norm, "b", norm, "bias")
    return with_bias(scaled if weight is None else scaled * weight.to(scaled), bias)


def attention(read: Parts, layer: int, clean: Clean) -> Parts:
    """Return the outputs of the heads for every part, with the attention pattern of the whole."""
    adapter, pattern = clean.prediction.adapter, clean.patterns[layer]
    block = adapter.model.blocks[layer].attn
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
    written = einsum(mixed, outputs, "part pos head d_head, head d_head d -> part pos d")
    return with_bias(written, bias_of(block, "b_O", "o"))


def bias_of(module: Any, name: str, projection: str) -> Tensor | None:
    return vector_of(module, name, getattr(module, projection, module), "bias")


def check_whole(parts: Parts, stream: Float[Tensor, "pos d"], layer: int) -> None:
    """Refuse a model with an unknown component: the parts no longer add up to the residual stream."""
    apart = float((parts.sum(0) - stream).abs().max() / stream.abs().max())
    if not apart < CLOSE:
        raise ValueError(
            f"method='depass' cannot split this model: after layer {layer} its parts miss the residual stream by "
            f"{apart:.1%}, so something in it is not known: choose another method, such as 'attn_lrp'"
        )
