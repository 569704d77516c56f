"""One interface to a live model, whichever kind and version it is: ids (or embeddings) in, logits out, hooks between.

A `HookedTransformer` (TransformerLens 3) and a `TransformerBridge` (3 and 4) share their hook names. They differ in how
a run continues from kept keys and values; that difference is in `key_value_reuse`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
    run_hooked,
    stream_name,
    user_hooks,
    values_names,
    wrapped,
)
from heta_lens.model.key_values import KeyValueReuse, is_hooked_transformer, key_value_reuse
from heta_lens.model.lock import changing, frozen_parameters, one_at_a_time, undo_at_end
from heta_lens.model.mask import Mask
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.model.weights import is_elsewhere, is_readable, output_weights, quantised_modules

# ------------------------------------------------------------------------------------------------------ block skipping
# Runs of some blocks of a model only: every other block hands on the residual stream that it is given.
#
# The model's own code still prepares masks, positions, rotations and kept keys and values, and calls every block, so
# what
# runs is the same as in a run of the whole model, whatever the architecture. A bridge cannot start or stop at a layer.


Form: TypeAlias = int | None
"""What a block returns: the stream alone, or a tuple of so many that begins with it."""


@contextmanager
def forms_noted(model: Model, blocks: Mapping[int, Any], forms: dict[int, Form]) -> Iterator[None]:
    """Note the form of what each block returns, in a run of the whole model."""
    handles = list[Any]()

    def remove() -> None:
        for handle in handles:
            handle.remove()

    with changing(model, remove):
        handles += [block.register_forward_hook(partial(_note, forms, layer)) for layer, block in blocks.items()]
        yield


def _note(forms: dict[int, Form], layer: int, _: Any, __: Any, output: Any) -> None:
    forms[layer] = len(output) if isinstance(output, tuple) else None


def skip(model: Model, blocks: Mapping[int, Any], forms: Mapping[int, Form]) -> None:
    """Let these blocks hand on what they are given, until the call that has the model ends."""
    before = {layer: vars(block).get("forward") for layer, block in blocks.items()}
    undo_at_end(model, partial(_restore, blocks, before))
    for layer, block in blocks.items():
        # Past `setattr`, with which a bridge would change the block that it wraps.
        vars(block)["forward"] = partial(_hand_on, forms[layer])


def _restore(blocks: Mapping[int, Any], before: Mapping[int, Any]) -> None:
    for layer, block in blocks.items():
        if before[layer] is None:
            vars(block).pop("forward", None)
        else:
            vars(block)["forward"] = before[layer]


def _hand_on(form: Form, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor | None, ...]:
    stream = args[0] if args else kwargs["hidden_states"]
    return stream if form is None else (stream, *[None] * (form - 1))


# ---------------------------------------------------------------------------------------------------- pattern dropping
# Bridges whose queries, keys and values are fused keep every layer's last pattern on the model, and nobody reads it.
#
# All layers' patterns are then held at once, and of a run with gradients its graph as well, until the next run.


KEPT = "_pattern"


def drop_patterns(model: Model, blocks: Iterable[Any]) -> None:
    """Drop what was kept, and until the call that has the model ends also what would be, as soon as a layer is done."""
    handles = list[Any]()
    undo_at_end(model, partial(_remove, handles))
    for attention in (getattr(block, "attn", None) for block in blocks):
        if attention is not None and KEPT in vars(attention):
            _drop(attention)
            handles.append(attention.register_forward_hook(_drop))


def _drop(attention: Any, *_: Any) -> None:
    vars(attention)[KEPT] = None


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


# -------------------------------------------------------------------------------------------------------- model checks
# Refuses models that cannot be explained: no hooks, an encoder, no attention, dropout switched on, no gradients.


RATES = ("p", "dropout", "attention_dropout")  # how torch and transformers call the rate of a module that drops out


def model_of(cache: Any) -> Any:
    """The model a cache was taken from; refused in one sentence if it cannot be explained."""
    if hasattr(cache, "run_with_cache"):
        raise TypeError(
            f"expected an ActivationCache, got the model itself, a {type(cache).__name__}: run it first, "
            "_, cache = model.run_with_cache(tokens)"
        )
    model = getattr(cache, "model", None)
    if model is None and hasattr(cache, "cache_dict"):
        raise TypeError("the cache has no model (cache.model is None): set cache.model to the model it was taken from")
    if model is None:
        raise TypeError(
            f"expected an ActivationCache, got {type(cache).__name__}: pass the second of the two things that "
            "model.run_with_cache returns"
        )
    check_decoder(model)
    return model


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
    both = zip(pattern_names(layers), values_names(layers), strict=True)
    missing = [name for names in both for name in names if name not in points]
    if missing:
        raise ValueError(f"{kind} has no {missing[0]}: heta_lens explains models that attend in every layer")
    if (name := _in_training(model)) is not None:
        where = f"{name} of the model" if name else "the model"
        raise ValueError(f"{where} is in training mode, where dropout can change every run: call model.eval() first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("the model was made under torch.inference_mode() and has no gradients: make it outside")


def _in_training(model: Any) -> str | None:
    """The name of what is in training mode: the model (""), or a part that drops out, or None.

    Other parts may be in training mode: those that TransformerLens creates when it processes weights are. So may a
    HookedTransformer, which has no dropout.
    """
    if not is_hooked_transformer(model) and (model.training or wrapped(model).training):
        return ""
    modules = (named for whole in (model, wrapped(model)) for named in whole.named_modules())
    return next((name for name, module in modules if module.training and _drops_out(module)), None)


def _drops_out(module: nn.Module) -> bool:
    rates = [getattr(module, name, 0) for name in RATES]
    return any(isinstance(rate, float | int) and rate > 0 for rate in rates)


def _is_encoder(model: Any) -> bool:
    """Whether no attention of the wrapped blocks is causal; some bridges of encoders do not say so in their config."""
    causal = [
        bool(module.is_causal)
        for block in model.blocks
        for module in block.modules()
        if hasattr(module, "is_causal") and not type(module).__module__.startswith("transformer_lens")
    ]
    return bool(causal) and not any(causal)  # cross-attention of a decoder is not causal either


@dataclass(frozen=True, eq=False)
class ModelAdapter:
    """A live model: ids (or embeddings) in, logits at chosen positions out."""

    def __repr__(self) -> str:
        return short_repr(self)

    model: Model

    @classmethod
    def of(cls, cache: Any) -> "ModelAdapter":
        """The model a cache was taken from; refused in one sentence if it cannot be explained."""
        return cls(model_of(cache))

    @property
    def blocks(self) -> Any:
        return cast(Any, self.model).blocks

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @cached_property
    def points(self) -> dict[str, Any]:
        return self.model.hook_dict  # which a bridge builds anew each time

    def stream_name(self, layer: int) -> str:
        """The residual stream entering a layer; for ``layer == layers``, the stream leaving the last one."""
        return stream_name(layer, self.layers)

    @property
    def token_weights(self) -> Float[Tensor, "vocab d"]:
        """The raw embedding weights; of a model that does not show them, what its embedding returns."""
        return self._embedding.detach() if is_readable(self._embedding) else self.embedding_table()

    @property
    def _embedding(self) -> Any:
        return cast(Any, self.model).embed.W_E

    @property
    def device(self) -> torch.device:
        """Where runs begin and results end up: the embedding's device, also of a model split over several."""
        return torch.device(self.model.cfg.device) if is_elsewhere(self._embedding) else self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What activations are in."""
        dtype = self._embedding.dtype
        return dtype if dtype.is_floating_point and dtype.itemsize >= 2 else self.model.cfg.dtype

    @cached_property
    def quantised(self) -> str | None:
        """The first module whose weights have fewer bits than what it computes with."""
        return next(quantised_modules(self.model), None)

    @property
    def rounding(self) -> float:
        """A relative error that two runs of one prompt may have: quantised weights have kernels that round anew."""
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
        """W_O, also of weights that are quantised or offloaded, which are run instead of read."""
        config = self.model.cfg
        return output_weights(self.blocks[layer].attn, int(config.n_heads), int(config.d_head), self.dtype)

    @one_at_a_time("self")
    @torch.no_grad()
    def embedding_table(self, ids: Sequence[int] | None = None) -> Float[Tensor, "token d"]:
        """What the embedding modules return for these ids (or all), scaled and normalised as in the model; no hooks."""
        every = torch.tensor([range(self.vocabulary) if ids is None else ids], device=self.device)
        return _embedded(self.model, every, bare=bool(self.user_hooks()))[0]

    def mask_vector(self, mask: Mask, embeddings: Float[Tensor, "pos d"]) -> Float[Tensor, "d"]:
        """Return the embedding that replaces a masked token's: zeros, an average, a token's, or the given vector."""
        if isinstance(mask, str) and (mask == "pad" or mask == "space"):
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

    @one_at_a_time("self")  # another thread's hooks must not say where positions are dropped
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
        """Run ids with hooks that read activations or replace them, and return logits, in float32 or better.

        Only the positions ``read`` are unembedded, unless the run must look complete (``whole``) to the user's hooks.
        Blocks below the ``first`` do not run; a hook has to replace the first block's input. With ``only``, one block
        runs, and the caller counts how many such runs make a forward.
        """
        if only is None:
            count("forwards", len(ids))
        blocks = range(first, self.layers) if only is None else range(only, only + 1)
        added = list((hooks or {}).items())
        if not whole:
            added.append((self._read_site(added, blocks), partial(rows, read)))
        skip(self.model, {layer: self.blocks[layer] for layer in range(self.layers) if layer not in blocks}, self.forms)
        drop_patterns(self.model, self.blocks)
        logits = run_hooked(self.model, self.points, added, ids, **(past or {}))
        logits = rows(read, logits) if whole else logits
        return logits.to(self.device, torch.promote_types(logits.dtype, torch.float32))

    @cached_property
    def forms(self) -> dict[int, Form]:
        """What each block returns, which is noted whenever `streams` are read."""
        return {}

    def _read_site(self, added: Sequence[tuple[str, Hook]], blocks: range) -> str:
        """Where a run drops the positions that are not read: after the last attention, if no hook may need the others.

        A bridge adds the MLP's output to a residual stream of all positions, so it can only drop them at the end.
        """
        if self.layers - 1 not in blocks:
            return READ
        hooks = [hook for name, hook in added if name in self._after_attention]
        hooks += [handle.user_hook for name in self._after_attention for handle in self.points[name].fwd_hooks]
        free = bool(self._after_attention) and all(isinstance(hook, PositionHook) for hook in hooks)
        return after_attention_name(self.layers - 1) if free else READ

    @cached_property
    def _after_attention(self) -> list[str]:
        """The hook points after the last attention; none if positions cannot be dropped there."""
        first, parallel = after_attention_name(self.layers - 1), getattr(self.model.cfg, "parallel_attn_mlp", False)
        follows = first in self.points and not parallel and is_hooked_transformer(self.model)
        return after_attention(self.layers - 1, self.points) if follows else []

    @torch.no_grad()
    def streams(
        self,
        ids: Int[Tensor, "batch pos"],
        layers: Sequence[int],
        hooks: Mapping[str, Hook] | None = None,
        *,
        whole: bool = False,
    ) -> dict[int, Float[Tensor, "batch pos d"]]:
        """The residual stream entering each of these layers, from a single run."""
        streams: dict[int, Tensor] = {}
        noting = {self.stream_name(layer): note(streams, layer) for layer in layers}
        with forms_noted(self.model, dict(enumerate(self.blocks)), self.forms):
            self.run(ids, {**(hooks or {}), **noting}, whole=whole)
        return streams

    @one_at_a_time("self")
    @torch.no_grad()
    def cache(self, ids: Int[Tensor, "1 pos"], kept: Callable[[str], bool] = names_filter) -> Any:
        """As ``run_with_cache(ids, names_filter=kept)``, which leaves its hooks behind when interrupted."""
        from transformer_lens import ActivationCache

        drop_patterns(self.model, self.blocks)
        activations: dict[str, Tensor] = {}
        noting = [(name, note(activations, name)) for name in self.points if kept(name)]
        with self.hooked(noting, every=False):
            self.model(ids)
        return ActivationCache(activations, cast(Any, self.model))

    def hooked(self, hooks: Sequence[tuple[str, Hook]], *, every: bool = True) -> AbstractContextManager[None]:
        """Add hooks, check that ``every`` one of them fires, and take exactly these off again."""
        return hooked(self.model, self.points, hooks, every=every)

    def user_hooks(self) -> list[Any]:
        """Hooks that somebody else put on the model, through TransformerLens or through torch."""
        return user_hooks(self.model, self.points)

    def undisturbed(self) -> AbstractContextManager[None]:
        """Gradients on, but off for the parameters; the parameters' flags are restored."""
        return frozen_parameters(self.model)

    @cached_property
    def reuse(self) -> KeyValueReuse:
        """How this kind of model continues from kept keys and values."""
        return key_value_reuse(self.model)

    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues the first ``start``, unchanged."""
        return self.reuse.resume(keys_values, start, stop, batch, self.device)

    @torch.no_grad()
    def keys_values(self, ids: Int[Tensor, "1 pos"]) -> KeysValues:
        """Every layer's keys and values; fewer than its layers for a model that keeps none."""
        past = self.resume([], 0, ids.shape[1], 1)
        self.run(ids, past=past)
        return self.reuse.grown(past)

    def check_layer(self, name: str, layer: Any) -> int:
        """This layer as a plain number; refused if the model does not have it."""
        if not (is_whole(layer) and 0 <= index(layer) < self.layers):
            last, hint = self.layers - 1, from_end(layer, self.layers)
            raise ValueError(f"{name}={layer!r} is none of the layers 0 to {last} this model has{hint}")
        return index(layer)

    def check_points(self, names: Iterable[str]) -> None:
        """Refuse hook points that this model does not have."""
        check_points(self.model, self.points, names)


def _embedded(model: Any, ids: Int[Tensor, "1 token"], *, bare: bool) -> Float[Tensor, "1 token d"]:
    """The output of the embedding modules; of the ``bare`` ones, no hook of the user's fires.

    A bare module may differ in the last bit from its bridge.
    """
    table: Tensor = ids
    for name in ("embed", "embed_ln"):
        module = getattr(model, name, None)
        if module is not None:
            table = getattr(module, "original_component", module).forward(table) if bare else module(table)
    return table
