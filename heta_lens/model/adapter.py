"""One interface to a live model of any kind and version: ids or embeddings in, logits out, hooks between.

A `HookedTransformer` (TransformerLens 3) and a `TransformerBridge` (3 and 4) share their hook names, and differ in how
a run continues from kept keys and values; `key_values` has that difference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import index
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heta_lens._util.numerics import tolerance
from heta_lens._util.options import check_token, from_end, is_whole
from heta_lens._util.text import short_repr
from heta_lens._util.work import count
from heta_lens.model.batching import Sizes, sizes_of
from heta_lens.model.hooks import (
    EMBED,
    READ,
    Hook,
    KeysValues,
    Model,
    Places,
    PositionHook,
    after_attention,
    after_attention_name,
    check_points,
    hooked,
    names_filter,
    note,
    pattern_names,
    rows,
    stream_name,
    user_hooks,
    values_names,
    wrapped,
)
from heta_lens.model.key_values import KeyValueReuse, is_hooked_transformer, key_value_reuse
from heta_lens.model.lock import frozen_parameters, holding, one_at_a_time, undo_at_end
from heta_lens.model.mask import Mask
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.model.weights import is_elsewhere, is_readable, output_weights, quantised_modules

DROPOUT_RATES = ("p", "dropout", "attention_dropout")  # attributes of modules of torch and transformers
LAST_PATTERN = "_pattern"  # where some bridges keep a layer's last pattern

OutputForm: TypeAlias = int | None
"""The output of a block: the residual stream alone (None), or a tuple of this length that begins with the stream."""


def check_decoder(model: Any) -> None:
    """Refuse a model that is not a decoder-only language model ready to be explained."""
    kind = type(model).__name__
    if not all(hasattr(model, name) for name in ("cfg", "hook_dict")):
        raise TypeError(f"{kind} is not a TransformerLens model")
    points = model.hook_dict
    direction = getattr(model.cfg, "attention_dir", "causal")
    if direction != "causal" or EMBED not in points or not hasattr(model, "blocks") or _is_encoder(model):
        raise ValueError(f"{kind} is not a decoder-only language model, where every token sees only those before it")
    layers = max(1, len(model.blocks))
    for name in (name for names in zip(pattern_names(layers), values_names(layers), strict=True) for name in names):
        if name not in points:
            raise ValueError(f"{kind} has no {name}: heta_lens explains models that attend in every layer")
    if (name := _in_training(model)) is not None:
        place = f"{name} of the model" if name else "the model"
        raise ValueError(f"{place} is in training mode, where dropout can change every run: call model.eval() first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("the model was made under torch.inference_mode() and has no gradients: make it outside")


def _in_training(model: Any) -> str | None:
    """Return the name of a part in training mode that drops out, "" for the model itself, or None.

    Parts that TransformerLens creates when it processes weights are in training mode and do not count. A
    HookedTransformer has no dropout.
    """
    if not is_hooked_transformer(model) and (model.training or wrapped(model).training):
        return ""
    modules = (named for root in (model, wrapped(model)) for named in root.named_modules())
    return next((name for name, module in modules if module.training and _drops_out(module)), None)


def _drops_out(module: nn.Module) -> bool:
    rates = [getattr(module, name, 0) for name in DROPOUT_RATES]
    return any(isinstance(rate, float | int) and rate > 0 for rate in rates)


def _is_encoder(model: Any) -> bool:
    """Return whether the wrapped blocks have attention, but no causal attention; configs do not always tell."""
    causal = [
        bool(module.is_causal)
        for block in model.blocks
        for module in block.modules()
        if hasattr(module, "is_causal") and not type(module).__module__.startswith("transformer_lens")
    ]
    return bool(causal) and not any(causal)  # a decoder may also have cross-attention, which is not causal


@dataclass(frozen=True, eq=False)
class ModelAdapter:
    """A live model: ids (or embeddings) in, logits at chosen positions out."""

    model: Model

    def __repr__(self) -> str:
        return short_repr(self)

    @classmethod
    def of(cls, cache: Any) -> "ModelAdapter":
        """Return the model of a cache; refuse models that cannot be explained."""
        if hasattr(cache, "run_with_cache"):
            raise TypeError(
                f"expected an ActivationCache, got the model itself, a {type(cache).__name__}: run it first, "
                "_, cache = model.run_with_cache(tokens)"
            )
        model = getattr(cache, "model", None)
        if model is None and hasattr(cache, "cache_dict"):
            raise TypeError(
                "the cache has no model (cache.model is None): set cache.model to the model it was taken from"
            )
        if model is None:
            raise TypeError(
                f"expected an ActivationCache, got {type(cache).__name__}: pass the second of the two things that "
                "model.run_with_cache returns"
            )
        check_decoder(model)
        return cls(model)

    @property
    def blocks(self) -> Any:
        return cast(Any, self.model).blocks

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @cached_property
    def points(self) -> dict[str, Any]:
        return self.model.hook_dict  # a bridge builds this dict again at every access

    def stream_name(self, layer: int) -> str:
        """Name the residual stream entering a layer; for ``layer == layers``, the stream leaving the last layer."""
        return stream_name(layer, self.layers)

    @property
    def token_weights(self) -> Float[Tensor, "vocab d"]:
        """The raw embedding weights, or the output of the embedding where the weights cannot be read."""
        return self._embedding.detach() if is_readable(self._embedding) else self.embedding_table()

    @property
    def _embedding(self) -> Any:
        return cast(Any, self.model).embed.W_E

    @property
    def device(self) -> torch.device:
        """The embedding's device, on which runs begin and results are returned."""
        return torch.device(self.model.cfg.device) if is_elsewhere(self._embedding) else self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        dtype = self._embedding.dtype
        return dtype if dtype.is_floating_point and dtype.itemsize >= 2 else self.model.cfg.dtype

    @cached_property
    def quantised(self) -> str | None:
        """The name of the first module with quantised weights, if the model has quantised weights."""
        return next(quantised_modules(self.model), None)

    @property
    def rounding(self) -> float:
        """The relative error allowed between two runs of a prompt: kernels of quantised weights round differently."""
        return max(tolerance(self.dtype), tolerance(torch.float16) if self.quantised else 0)

    @property
    def tokenizer(self) -> TokenizerWrapper:
        return TokenizerWrapper(self.model.tokenizer)

    @property
    def vocabulary(self) -> int:
        return len(self._embedding)

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.model.cfg, self.layers, self.vocabulary, self.dtype.itemsize)

    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d"]:
        """Return W_O by head; quantised and offloaded weights are run instead of read."""
        config = self.model.cfg
        return output_weights(self.blocks[layer].attn, int(config.n_heads), int(config.d_head), self.dtype)

    @one_at_a_time("self")
    @torch.no_grad()
    def embedding_table(self, ids: Sequence[int] | None = None) -> Float[Tensor, "token d"]:
        """Return the embeddings of these ids (or the vocabulary), scaled and normalised by the model, without hooks."""
        every = torch.tensor([range(self.vocabulary) if ids is None else ids], device=self.device)
        return _embedded(self.model, every, bare=bool(self.user_hooks()))[0]

    def mask_vector(self, mask: Mask, embeddings: Float[Tensor, "pos d"]) -> Float[Tensor, "d"]:
        """Return the embedding that replaces a masked token's: zeros, an average, a token's, or the given vector."""
        if isinstance(mask, str) and mask in ("pad", "space"):
            token = self.tokenizer.stand_in(mask)
            if token is None:
                raise ValueError(
                    f"mask={mask!r} needs a tokenizer with a padding, end or unknown token: give a token id"
                )
            mask = token
        if isinstance(mask, Tensor):
            if len(mask) != embeddings.shape[1]:
                raise ValueError(f"mask has {len(mask)} entries; this model's embeddings have {embeddings.shape[1]}")
            return mask.detach().to(embeddings)
        if not isinstance(mask, str):
            check_token("mask", index(mask), self.vocabulary)
            return self.embedding_table([index(mask)])[0].to(embeddings)
        if mask == "mean":
            return embeddings.mean(0)
        if mask == "vocab_mean":
            return self.embedding_table().to(embeddings).mean(0)
        return torch.zeros_like(embeddings[0])

    def run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Mapping[str, Hook] | None = None,
        *,
        read: Places = (-1,),
        whole: bool = False,
        past: Mapping[str, Any] | None = None,
        first: int = 0,
        only: int | None = None,
    ) -> Float[Tensor, "batch read vocab"]:
        """Run ids with hooks that read or replace activations, and return logits, in float32 or better.

        Only the positions ``read`` are unembedded, unless the run must look complete (``whole``) to the user's hooks.
        Blocks below the ``first`` do not run; a hook has to replace the first block's input. With ``only``, a single
        block runs, and the caller counts these runs as forwards.
        """
        if only is None:
            count("forwards", len(ids))
        blocks = range(first, self.layers) if only is None else range(only, only + 1)
        added = list((hooks or {}).items())
        with holding(self):  # hooks of another thread must not decide at which point positions are dropped
            if not whole:
                added.append((self._read_site(added, blocks), partial(rows, read)))
            self._skip([layer for layer in range(self.layers) if layer not in blocks])
            self._drop_patterns()
            with self.hooked(added):
                logits = self.model(ids, **(past or {}))
        logits = rows(read, logits) if whole else logits
        return logits.to(self.device, torch.promote_types(logits.dtype, torch.float32))

    @cached_property
    def output_forms(self) -> dict[int, OutputForm]:
        """The forms of the blocks' outputs, noted by `streams`."""
        return {}

    def _skip(self, layers: Sequence[int]) -> None:
        """Let blocks return their input until the current call ends.

        The model's own code still prepares masks, positions, rotations and kept keys and values, and calls every
        block, so a run of the other blocks is the same as in the whole model, for every architecture.
        """
        for layer in layers:
            attributes = vars(self.blocks[layer])  # `setattr` of a bridge would change the block inside the bridge
            undo_at_end(self.model, partial(_restore, attributes, "forward", attributes.get("forward")))
            attributes["forward"] = partial(_return_input, self.output_forms[layer])

    def _drop_patterns(self) -> None:
        """Drop each layer's kept pattern as soon as the layer is done, until the current call ends.

        Bridges with fused queries, keys and values keep the patterns of all layers at once, and, in runs with
        gradients, the graphs of the patterns too. Nothing reads the kept patterns.
        """
        for attention in (getattr(block, "attn", None) for block in self.blocks):
            if attention is not None and LAST_PATTERN in vars(attention):
                _drop_pattern(attention)
                _hook_until_end(self.model, attention, _drop_pattern)

    def _read_site(self, added: Sequence[tuple[str, Hook]], blocks: range) -> str:
        """Return the hook point for dropping the positions that are not read.

        Positions can go after the last attention, unless a hook may need the others. A bridge adds the MLP's output to
        the residual stream of all positions, so its positions go before the unembedding.
        """
        if self.layers - 1 not in blocks:
            return READ
        hooks = [hook for name, hook in added if name in self._after_attention]
        hooks += [handle.user_hook for name in self._after_attention for handle in self.points[name].fwd_hooks]
        free = bool(self._after_attention) and all(isinstance(hook, PositionHook) for hook in hooks)
        return after_attention_name(self.layers - 1) if free else READ

    @cached_property
    def _after_attention(self) -> list[str]:
        """The hook points after the last attention; empty if positions cannot be dropped after the last attention."""
        first, parallel = after_attention_name(self.layers - 1), getattr(self.model.cfg, "parallel_attn_mlp", False)
        follows = first in self.points and not parallel and is_hooked_transformer(self.model)
        return after_attention(self.layers - 1, self.points) if follows else []

    @one_at_a_time("self")
    @torch.no_grad()
    def streams(
        self,
        ids: Int[Tensor, "batch pos"],
        layers: Sequence[int],
        hooks: Mapping[str, Hook] | None = None,
        *,
        whole: bool = False,
    ) -> dict[int, Float[Tensor, "batch pos d"]]:
        """Return the residual stream entering the given layers, from a single run."""
        streams: dict[int, Tensor] = {}
        noting = {self.stream_name(layer): note(streams, layer) for layer in layers}
        for layer, block in enumerate(self.blocks):
            _hook_until_end(self.model, block, partial(_note_form, self.output_forms, layer))
        self.run(ids, {**(hooks or {}), **noting}, whole=whole)
        return streams

    @one_at_a_time("self")
    @torch.no_grad()
    def cache(self, ids: Int[Tensor, "1 pos"], kept: Callable[[str], bool] = names_filter) -> Any:
        """Run like ``run_with_cache(ids, names_filter=kept)``, but leave no hooks behind when interrupted."""
        from transformer_lens import ActivationCache

        self._drop_patterns()
        activations: dict[str, Tensor] = {}
        noting = [(name, note(activations, name)) for name in self.points if kept(name)]
        with self.hooked(noting, every=False):
            self.model(ids)
        return ActivationCache(activations, cast(Any, self.model))

    def hooked(self, hooks: Sequence[tuple[str, Hook]], *, every: bool = True) -> AbstractContextManager[None]:
        """Add hooks for a block, check that ``every`` hook fires, and remove exactly the added hooks."""
        return hooked(self.model, self.points, hooks, every=every)

    def user_hooks(self) -> list[Any]:
        """List the hooks that a user put on the model, through TransformerLens or through torch."""
        return user_hooks(self.model, self.points)

    def undisturbed(self) -> AbstractContextManager[None]:
        """Turn gradients on, but off for the parameters, whose flags are restored."""
        return frozen_parameters(self.model)

    @cached_property
    def reuse(self) -> KeyValueReuse:
        """The continuation from kept keys and values, for the kind of the model."""
        return key_value_reuse(self.model)

    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        """Return arguments with which a run of positions ``start:stop`` continues the first ``start`` positions."""
        return self.reuse.resume(keys_values, start, stop, batch, self.device)

    @torch.no_grad()
    def keys_values(self, ids: Int[Tensor, "1 pos"]) -> KeysValues:
        """Return every layer's keys and values; models that keep no keys and values return fewer pairs than layers."""
        past = self.resume([], 0, ids.shape[1], 1)
        self.run(ids, past=past)
        return self.reuse.grown(past)

    def check_layer(self, name: str, layer: Any) -> int:
        """Return a layer's number as an int; refuse layers that the model does not have."""
        if not (is_whole(layer) and 0 <= index(layer) < self.layers):
            last, hint = self.layers - 1, from_end(layer, self.layers)
            raise ValueError(f"{name}={layer!r} is none of the layers 0 to {last} this model has{hint}")
        return index(layer)

    def check_points(self, names: Iterable[str]) -> None:
        """Refuse hook points missing from the model."""
        check_points(self.model, self.points, names)


def _embedded(model: Any, ids: Int[Tensor, "1 token"], *, bare: bool) -> Float[Tensor, "1 token d"]:
    """Return the output of the embedding modules, or of the ``bare`` Hugging Face modules, which fire no user's hook.

    A bare module may differ in the last bit from its bridge.
    """
    table: Tensor = ids
    for name in ("embed", "embed_ln"):
        module = getattr(model, name, None)
        if module is not None:
            table = getattr(module, "original_component", module).forward(table) if bare else module(table)
    return table


def _hook_until_end(model: Model, module: nn.Module, hook: Callable[..., None]) -> None:
    """Call ``hook(module, inputs, output)`` after the module, until the current call ends."""

    def remove() -> None:
        for key, function in list(module._forward_hooks.items()):
            if function is hook:
                del module._forward_hooks[key]

    undo_at_end(model, remove)
    module.register_forward_hook(hook)


def _note_form(forms: dict[int, OutputForm], layer: int, _: Any, __: Any, output: Any) -> None:
    forms[layer] = len(output) if isinstance(output, tuple) else None


def _return_input(form: OutputForm, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor | None, ...]:
    stream = args[0] if args else kwargs["hidden_states"]
    return stream if form is None else (stream, *[None] * (form - 1))


def _restore(attributes: dict[str, Any], name: str, before: Any) -> None:
    if before is None:
        attributes.pop(name, None)
    else:
        attributes[name] = before


def _drop_pattern(attention: Any, *_: Any) -> None:
    vars(attention)[LAST_PATTERN] = None
