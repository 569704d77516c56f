"""The names of the hook points heta_lens reads and patches; a HookedTransformer and a TransformerBridge share them."""

import re
from collections.abc import Iterable

EMBED = "hook_embed"
READ = "unembed.hook_in"  # what the last layer norm hands to the unembedding
OUT = "unembed.hook_out"


def names_filter(name: str) -> bool:
    """The activations heta_lens reads: ``model.run_with_cache(tokens, names_filter=heta_lens.names_filter)``.

    They end where the unembedding begins, so a later change of the unembedding is noticed in a full cache only.
    """
    return name in (EMBED, READ) or re.fullmatch(r"blocks\.\d+\.attn\.hook_(pattern|v)", name) is not None


def lean_names_filter(name: str) -> bool:
    """`names_filter` without the attention patterns, for long prompts: they grow with the square of the length.

    At 4,096 tokens, 32 layers of 32 heads have 34 GB of patterns in bfloat16, and all else that is read has less than
    one. What needs patterns then makes them on the live model, one layer at a time, in about two forward passes.
    """
    return names_filter(name) and not name.endswith("hook_pattern")


def pattern_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_pattern"


def pattern_names(layers: int) -> list[str]:
    return [pattern_name(layer) for layer in range(layers)]


def values_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_v"


def values_names(layers: int) -> list[str]:
    return [values_name(layer) for layer in range(layers)]


def queries_keys_names(layer: int) -> tuple[str, str]:
    """What a pattern is computed from. Some bridges show a pattern only after it was used, but never these."""
    return f"blocks.{layer}.attn.hook_q", f"blocks.{layer}.attn.hook_k"


def rotated_names(layer: int) -> tuple[str, str]:
    """Queries and keys as a pattern is computed from them, in models that rotate them by position."""
    return f"blocks.{layer}.attn.hook_rot_q", f"blocks.{layer}.attn.hook_rot_k"


def scores_name(layer: int) -> str:
    """What a pattern is the softmax of."""
    return f"blocks.{layer}.attn.hook_attn_scores"


def attention_inputs(layer: int) -> tuple[str, str, str]:
    """Queries, keys and values, before they are rotated or shared among heads."""
    query, key, value = (f"blocks.{layer}.attn.hook_{kind}" for kind in "qkv")
    return query, key, value


def head_outputs_name(layer: int) -> str:
    """What every head has gathered, before it is written to the residual stream."""
    return f"blocks.{layer}.attn.hook_z"


def added_names(layer: int) -> tuple[str, str]:
    """What a layer's attention and its MLP add to the residual stream."""
    return f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"


def after_attention_name(layer: int) -> str:
    """The residual stream between a layer's attention and its MLP, where one follows the other."""
    return f"blocks.{layer}.hook_resid_mid"


def after_attention(layer: int, names: Iterable[str]) -> list[str]:
    """Those of these hook points that come after this attention, in the last layer: positions no longer interact."""
    own = r"hook_resid_mid|hook_mlp_in|ln2(_post)?\..*|mlp\..*|hook_mlp_out|hook_resid_post"
    return [name for name in names if re.fullmatch(rf"blocks\.{layer}\.({own})|ln_final\..*|unembed\..*", name)]


def stream_name(layer: int, layers: int) -> str:
    """The residual stream entering a layer; for ``layer == layers``, the stream leaving the last one."""
    return f"blocks.{layer}.hook_resid_pre" if layer < layers else f"blocks.{layer - 1}.hook_resid_post"
