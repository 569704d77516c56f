"""What a residual stream is made of after attention: how much of it each token and head supplied (Ferrando 2024)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens.methods.layer_reading import full_ids, pattern_runs, value_runs
from heta_lens.model.head_outputs import head_outputs
from heta_lens.model.hook_sites import added_names, after_attention_name, stream_name
from heta_lens.prediction.live_activations import live
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
