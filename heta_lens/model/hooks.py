"""Hook points read and patched by heta_lens, and hooks that read and replace activations.

A `HookedTransformer` and a `TransformerBridge` share the names of their hook points.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from einops import einsum, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

EMBED = "hook_embed"
READ = "unembed.hook_in"  # the output of the last norm
OUT = "unembed.hook_out"

KeysValues: TypeAlias = list[tuple[Tensor, Tensor]]  # a pair per layer, in the layout of the model's own cache


def wrapped(model: Any) -> Any:
    """Return the Hugging Face model inside a bridge; a HookedTransformer is returned unchanged."""
    return getattr(model, "original_model", model)


def is_hooked_transformer(model: Any) -> bool:
    return wrapped(model) is model


def bare(module: Any) -> Any:
    """Return the Hugging Face module inside a bridge's module, which no hook of TransformerLens watches."""
    return getattr(module, "original_component", module)


# ----------------------------------------------------------------------------------------------- names of hook points
def names_filter(name: str) -> bool:
    """Select the activations heta_lens reads: ``model.run_with_cache(tokens, names_filter=heta_lens.names_filter)``.

    The selection ends where the unembedding begins, so a later change of the unembedding is noticed in a full cache
    only.
    """
    return name in (EMBED, READ) or re.fullmatch(r"blocks\.\d+\.attn\.hook_(pattern|v)", name) is not None


def lean_names_filter(name: str) -> bool:
    """Select like `names_filter`, but without the attention patterns, which grow with the square of the length.

    At 4,096 tokens, 32 layers of 32 heads have 34 GB of patterns in bfloat16, and all other activations together less
    than one. Methods that need patterns compute them on the live model, one layer at a time, in about two forward
    passes.
    """
    return names_filter(name) and not name.endswith("hook_pattern")


def pattern_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_pattern"


def pattern_names(layers: int) -> list[str]:
    return list(map(pattern_name, range(layers)))


def values_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_v"


def values_names(layers: int) -> list[str]:
    return list(map(values_name, range(layers)))


def queries_keys_names(layer: int) -> tuple[str, str]:
    """Name the inputs of a pattern; hooks on patterns come too late in several bridges."""
    return f"blocks.{layer}.attn.hook_q", f"blocks.{layer}.attn.hook_k"


def attention_inputs(layer: int) -> tuple[str, str, str]:
    """Name queries, keys and values, before rotation and before heads share them."""
    return (*queries_keys_names(layer), values_name(layer))


def head_outputs_name(layer: int) -> str:
    """Name the weighted sums of values, before the output projection."""
    return f"blocks.{layer}.attn.hook_z"


def added_names(layer: int) -> tuple[str, str]:
    """Name the outputs of a layer's attention and MLP, which are added to the residual stream."""
    return f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"


def after_attention_name(layer: int) -> str:
    """Name the residual stream between a layer's attention and MLP, in models without parallel attention."""
    return f"blocks.{layer}.hook_resid_mid"


def stream_name(layer: int, layers: int) -> str:
    """Name the residual stream entering a layer; for ``layer == layers``, the stream leaving the last layer."""
    return f"blocks.{layer}.hook_resid_pre" if layer < layers else f"blocks.{layer - 1}.hook_resid_post"


# -------------------------------------------------------------------------------------------------------------- hooks
Hook: TypeAlias = Callable[[Tensor], Tensor | None]  # reads an activation, and may return a replacement
Replacing: TypeAlias = Callable[[Tensor], Tensor]
ReadAt: TypeAlias = Sequence[int] | Int[Tensor, "batch read"]  # positions to read: the same in all copies, or per copy


class BatchHook(partial[Any]):
    """A hook for many runs, with several copies of a prompt at once, from the first token on."""


def put(states: Float[Tensor, "batch pos d"]) -> Hook:
    """Return a hook for replacing an activation by given states."""
    return lambda live: states.to(live)


def put_positions(clean: Float[Tensor, "pos d"], start: int, stop: int) -> Hook:
    """Return a hook for replacing positions ``start:stop`` of every copy by the clean states."""

    def hook(live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
        states = repeat(clean[start:stop], "pos d -> batch pos d", batch=len(live)).to(live)
        return torch.cat([live[:, :start], states, live[:, start + states.shape[1] :]], 1)

    return hook


def put_where(cells: Bool[Tensor, "#copy pos *head"], values: Float[Tensor, "#copy #pos ..."]) -> Replacing:
    """Return a hook for replacing activations in cells: at positions of the copies, or in heads at positions.

    Runs may be longer or shorter than the cells.
    """

    def hook(live: Float[Tensor, "copy run ..."]) -> Float[Tensor, "copy run ..."]:
        length = min(cells.shape[1], live.shape[1])
        places = cells[(slice(None), slice(length), ..., *[None] * (live.ndim - cells.ndim))].to(live.device)
        patched = torch.where(places, values[:, :length].to(live), live[:, :length])
        return torch.cat([patched, live[:, length:]], 1)

    return hook


def rows(read: ReadAt, live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch read d"]:
    """Select positions of an activation."""
    if isinstance(read, Tensor):
        return live.gather(1, repeat(read.to(live.device), "batch read -> batch read d", d=live.shape[-1]))
    return live[:, list(read)]


def note(activations: dict[Any, Tensor], key: Any) -> Hook:
    """Return a hook for storing the activation under a key."""
    return partial(activations.__setitem__, key)


def head_outputs(
    values: Float[Tensor, "pos group d_head"], output: Float[Tensor, "head d_head d"]
) -> Float[Tensor, "head pos d"]:
    """Compute ``v_i W_O``, the outputs of heads with attention on a single position."""
    shared = repeat(values, "pos group d_head -> pos (group share) d_head", share=len(output) // values.shape[1])
    return einsum(shared, output, "pos head d_head, head d_head d -> head pos d")
