"""One interface to a live model, whichever kind and version it is: ids (or embeddings) in, logits out, hooks between.

A `HookedTransformer` (TransformerLens 3) and a `TransformerBridge` (3 and 4) share their hook names. They differ in how
a run continues from kept keys and values; that difference is in `key_value_reuse`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import index
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.options import from_end, is_whole
from heta_lens._util.short_repr import short_repr
from heta_lens._util.tolerance import tolerance
from heta_lens._util.work_counting import count
from heta_lens.model.block_skipping import Form, forms_noted, skip
from heta_lens.model.hook_sites import (
    READ,
    after_attention,
    after_attention_name,
    names_filter,
    stream_name,
)
from heta_lens.model.hooking import (
    Hook,
    Places,
    PositionHook,
    check_points,
    hooked,
    note,
    put,
    rows,
    run_hooked,
    user_hooks,
)
from heta_lens.model.key_value_reuse import KeyValueReuse, is_hooked_transformer, key_value_reuse
from heta_lens.model.locking import frozen_parameters, one_at_a_time
from heta_lens.model.memory_estimates import Sizes, sizes_of
from heta_lens.model.model_checks import model_of
from heta_lens.model.model_protocol import KeysValues, Model
from heta_lens.model.pattern_dropping import drop_patterns
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.model.weight_reading import is_elsewhere, is_readable, output_weights, quantised_modules


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

    def run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Mapping[str, Hook] | None = None,
        *,
        read: Places = (-1,),
        whole: bool = False,
        past: Mapping[str, Any] | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch read vocab"]:
        """Logits at the positions ``read``, in float32 or better; ``hooks`` read activations or replace them.

        Only these positions are unembedded, unless the run must look complete (``whole``) to the user's hooks. Blocks
        below the ``first`` do not run, where hooks replace what enters it.
        """
        count("forwards", len(ids))
        return self._run(ids, hooks or {}, read, whole, past or {}, range(first, self.layers))

    def run_block(
        self,
        layer: int,
        ids: Int[Tensor, "batch pos"],
        stream: Float[Tensor, "batch pos d"],
        hooks: Mapping[str, Hook] | None = None,
        *,
        read: Places = (-1,),
        past: Mapping[str, Any] | None = None,
        site: str | None = None,
    ) -> Float[Tensor, "batch read vocab"]:
        """The same of a single block, of what enters it: logits, if it is the last. Counted by who asks for many.

        With a ``site``, of what is put in there, before the block.
        """
        entering = {site or self.stream_name(layer): put(stream)}
        return self._run(ids, {**entering, **(hooks or {})}, read, False, past or {}, range(layer, layer + 1))

    @one_at_a_time("self")  # another thread's hooks must not say where positions are dropped
    def _run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Mapping[str, Hook],
        read: Places,
        whole: bool,
        past: Mapping[str, Any],
        blocks: range,
    ) -> Float[Tensor, "batch read vocab"]:
        added = list(hooks.items())
        if not whole:
            added.append((self._read_site(added, blocks), partial(rows, read)))
        skip(self.model, {layer: self.blocks[layer] for layer in range(self.layers) if layer not in blocks}, self.forms)
        drop_patterns(self.model, self.blocks)
        logits = run_hooked(self.model, self.points, added, ids, **past)
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
