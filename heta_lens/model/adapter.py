"""One interface to a live model of any kind and version: ids or embeddings in, logits out, hooks between.

A `HookedTransformer` (TransformerLens 3) and a `TransformerBridge` (3 and 4) share their hook names, and differ in how
a run continues from kept keys and values; `key_values` has that difference.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import index
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from heta_lens._util.numerics import tolerance
from heta_lens._util.options import from_end, hint, is_whole
from heta_lens._util.work import count
from heta_lens.model.batching import Sizes, available, out_of_memory
from heta_lens.model.hooks import (
    EMBED,
    READ,
    BatchHook,
    Hook,
    KeysValues,
    ReadAt,
    after_attention_name,
    bare,
    is_hooked_transformer,
    lean_names_filter,
    names_filter,
    note,
    pattern_name,
    rows,
    stream_name,
    values_name,
    wrapped,
)
from heta_lens.model.key_values import BridgeReuse, HookedTransformerReuse, KeyValueReuse
from heta_lens.model.lock import holding, one_at_a_time, undo_at_end
from heta_lens.model.tokenizer import TokenizerWrapper
from heta_lens.model.weights import is_readable, on_units, quantised_modules, read_output_weights

TRIED = 5  # tokens with which activations are tried
_tried: WeakKeyDictionary[Any, tuple[dict[str, tuple[int, ...]], dict[int, Any]]] = WeakKeyDictionary()
LAST_PATTERN = "_pattern"  # where some bridges keep a layer's last pattern
TORCH_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LIBRARIES = ("transformers", "transformer_lens", "accelerate")  # whose hooks are not a user's

OutputForm: TypeAlias = int | None
"""The output of a block: the residual stream alone (None), or a tuple of this length that begins with the stream."""


def check_decoder(model: Any) -> None:
    """Refuse a model that is not a decoder-only language model ready to be explained."""
    kind = type(model).__name__
    if not all(hasattr(model, name) for name in ("cfg", "hook_dict", "tokenizer")):
        raise TypeError(f"{kind} is not a TransformerLens model")
    points, direction = model.hook_dict, getattr(model.cfg, "attention_dir", "causal")
    if direction != "causal" or EMBED not in points or not hasattr(model, "blocks"):
        raise ValueError(f"{kind} is not a decoder-only language model, where every token sees only those before it")
    for layer in range(max(1, len(model.blocks))):
        for name in (pattern_name(layer), values_name(layer)):
            if name not in points:
                raise ValueError(f"{kind} has no {name}: heta_lens explains models that attend in every layer")
    if not is_hooked_transformer(model) and (model.training or wrapped(model).training):  # the other has no dropout
        raise ValueError("the model is in training mode, where dropout can change every run: call model.eval() first")


@dataclass(frozen=True, eq=False)
class ModelAdapter:
    """A live model: ids (or embeddings) in, logits at chosen positions out."""

    model: Any = field(repr=False)  # a HookedTransformer, or a TransformerBridge
    reads: tuple[str, ...] = ()  # hook points whose activations runs return in place of logits; no later block runs
    output_forms: dict[int, OutputForm] = field(default_factory=dict, init=False, repr=False)  # noted by `streams`
    narrow: dict[str, bool] = field(default_factory=dict, init=False, repr=False)  # noted by the check of a cache

    @classmethod
    def of(cls, cache: Any) -> "ModelAdapter":
        """Return the model of a cache; refuse models that cannot be explained."""
        if not hasattr(cache, "cache_dict"):
            raise TypeError(
                f"expected an ActivationCache, got {type(cache).__name__}: pass the second of the two things that "
                "model.run_with_cache(tokens) returns"
            )
        if cache.model is None:
            raise TypeError("the cache has no model (cache.model is None): set cache.model to the cached model")
        check_decoder(cache.model)
        return cls(cache.model)

    @property
    def layers(self) -> int:
        """The number of blocks that run: all, or as far as what is read."""
        every = len(self.model.blocks)
        return max(_blocks_before(name, every) for name in self.reads) if self.reads else every

    def blocks_attending(self, names: Iterable[str]) -> int:
        """Return the number of blocks whose attention comes before one of these hook points, at least 1."""
        every = len(self.model.blocks)
        return max(1, *(_blocks_before(name, every) - bool(BEFORE_ATTENTION.search(name)) for name in names))

    @property
    def ends(self) -> list[int]:
        """The end tokens of a text or a turn."""
        own = getattr(getattr(wrapped(self.model), "generation_config", None), "eos_token_id", None)
        return [*{self.tokenizer.eos, *(own if isinstance(own, list) else [own])} - {None}]

    @cached_property
    def rotary_limit(self) -> int | None:
        """The longest run with the rotary positions of short runs; longer ones have other positions at all tokens."""
        rotary = getattr(getattr(wrapped(self.model), "config", None), "rope_scaling", None) or {}
        depends = rotary.get("rope_type") in ("longrope", "dynamic")
        return rotary.get("original_max_position_embeddings", self.model.cfg.n_ctx) if depends else None

    @property
    def first_read(self) -> int:
        """The lowest block in which something is read; the last block, where logits are read."""
        every = len(self.model.blocks)
        return min(_blocks_before(name, every) for name in self.reads or ("",)) - 1

    def passes(self, name: str) -> bool:
        """Return whether runs go through a hook point: it is in a block that runs, or in none."""
        return _blocks_before(name, 0) <= self.layers

    def reading(self, names: Iterable[str]) -> tuple["ModelAdapter", list[tuple[int, ...]]]:
        """Return the model up to activations, which runs return in place of logits, and the activations' shapes.

        The first time, an activation of a few tokens is read, which also tells what the blocks that are skipped return.
        A user's hooks are off meanwhile: they may be for positions that a few tokens do not have.
        """
        names, known = tuple(names), _tried.setdefault(self.model, ({}, {}))
        tried = min(TRIED, getattr(self.model.cfg, "n_ctx", None) or TRIED)
        for name in names:
            if name not in self.points:
                raise ValueError(f"activation({name!r}): this model has no such hook point{hint(name, self.points)}")
            if name.startswith("unembed"):
                raise ValueError(f"activation({name!r}) is the prediction: give a function of the logits as the target")
        if new := [name for name in names if name not in known[0]]:
            few, found = torch.zeros(1, tried, dtype=torch.long, device=self.device), dict[str, Tensor]()
            try:
                with self._without_hooks(), torch.no_grad():
                    self.streams(few, [], {name: note(found, name) for name in new})
            except RuntimeError as error:  # of hooks that never fire
                if out_of_memory(error):
                    raise
            known[0].update({name: tuple(found[name].shape) for name in new if name in found})
            known[1].update(self.output_forms)
        for name in names:
            shape = known[0].get(name)  # options of a model, such as use_attn_result, may let runs reach it later
            if shape is None:
                raise ValueError(f"activation({name!r}): no run of this model reaches it")
            if shape[:2] != (1, tried) or len(shape) < 3:
                raise ValueError(
                    f"activation({name!r}) has no row for every token: {tried} tokens give shape {shape}. Choose a "
                    "point that has, such as a head's output, activation('blocks.0.attn.hook_z', head=0, index=0)"
                )
        part = replace(self, reads=names)
        part.output_forms.update(known[1])
        return part, [known[0][name][2:] for name in names]

    @cached_property
    def points(self) -> dict[str, Any]:
        return self.model.hook_dict  # a bridge builds this dict again at every access

    def stream_name(self, layer: int) -> str:
        """Name the residual stream entering a layer; for ``layer == layers``, the stream leaving the last layer."""
        return stream_name(layer, self.layers)

    @property
    def token_weights(self) -> Float[Tensor, "vocab d"]:
        """The raw embedding weights, or the output of the embedding where the weights cannot be read."""
        weights = self.model.embed.W_E
        return weights.detach() if is_readable(weights) else self.embedding_table()

    @property
    def weight_processing(self) -> dict[str, Any]:
        """The processing of the weights, on which the gate depends, although the logits do not."""
        return {
            "kind": type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "normalization": getattr(self.model.cfg, "normalization_type", None),
            "compatibility_mode": bool(getattr(self.model, "compatibility_mode", False)),
            "quantised": self.quantised is not None,
        }

    @property
    def device(self) -> torch.device:
        """The embedding's device, on which runs begin and results are returned."""
        device = self.model.embed.W_E.device
        return torch.device(self.model.cfg.device) if device.type == "meta" else device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        dtype = self.model.embed.W_E.dtype
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
        return len(self.model.embed.W_E)

    @cached_property
    def sizes(self) -> Sizes:
        config, d = self.model.cfg, int(self.model.cfg.d_model)
        d_mlp = int(getattr(config, "d_mlp", None) or 4 * d)
        heads = int(config.n_heads)
        d_values = int(getattr(config, "n_key_value_heads", None) or heads) * int(config.d_head)
        return Sizes(self.layers, d, d_mlp, heads, self.vocabulary, self.dtype.itemsize, d_values)

    def graph_fits(self, positions: int) -> bool:
        """Return whether the graph of a gradient is expected to fit into half of the free memory."""
        return self.sizes.gradient(positions, positions) <= available(self.device) // 2

    @torch.no_grad()
    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d"]:
        """Return W_O by head; quantised and offloaded weights are run on unit vectors instead of read."""
        attention, config = self.model.blocks[layer].attn, self.model.cfg
        weights = read_output_weights(attention)
        if weights is not None:
            return weights
        if not hasattr(attention, "o"):
            raise ValueError(
                f"W_O of a {type(attention).__name__} with quantised weights can be neither read nor run by itself: "
                "load the model as a TransformerBridge"
            )
        weights = on_units(bare(attention.o), int(config.n_heads) * int(config.d_head), self.dtype)
        return rearrange(weights, "(head d_head) d -> head d_head d", head=int(config.n_heads))

    @one_at_a_time("self")
    @torch.no_grad()
    def embedding_table(self, ids: Sequence[int] | None = None) -> Float[Tensor, "token d"]:
        """Return the embeddings of these ids (or the vocabulary), scaled and normalised by the model, without hooks."""
        table = torch.tensor([range(self.vocabulary) if ids is None else ids], device=self.device)
        watched = bool(self.user_hooks())  # bare Hugging Face modules may differ in the last bit from their bridges
        for name in ("embed", "embed_ln"):
            module = getattr(self.model, name, None)
            if module is not None:
                table = bare(module).forward(table) if watched else module(table)
        return table[0]

    def run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Mapping[str, Hook] | None = None,
        *,
        read: ReadAt = (-1,),
        whole: bool = False,
        past: Mapping[str, Any] | None = None,
        first: int = 0,
        only: int | None = None,
        narrow: bool = False,
    ) -> Float[Tensor, "batch read vocab"]:
        """Run ids with hooks that read or replace activations, and return logits, in float32 or better.

        An adapter that `reads` activations returns these in place of logits, one after the other.
        Only the positions ``read`` are unembedded, unless the run must look complete (``whole``) to the user's hooks.
        Where the model allows (or for a trial, ``narrow``), only these pass through the last MLP.
        Blocks below the ``first`` do not run; a hook has to replace the first block's input. With ``only``, a single
        block runs, and the caller counts these runs as forwards.
        """
        if only is None:
            count("forwards", len(ids))
        blocks = range(first, self.layers) if only is None else range(only, only + 1)
        added = list((hooks or {}).items())
        with holding(self):
            noted: dict[str, Tensor] = {}
            noting = [(name, note(noted, name)) for name in self.reads] if only is None else []
            if noting:
                self._skip(self.model.unembed, None)
            elif not whole:
                last_runs = only is None and first < self.layers
                points = self._narrowing(hooks or {}, read, narrow) if last_runs else [READ]
                added += [(name, partial(rows, read)) for name in points]
            for layer, block in enumerate(self.model.blocks):
                if layer not in blocks:
                    self._skip(block, self.output_forms[layer])
            self._drop_patterns()
            with self.hooked([*added, *noting]):
                logits = self.model(ids, **(past or {}))
        if noting:
            logits = torch.cat([rows(read, noted[name].flatten(2)).to(self.device) for name in self.reads], -1)
        elif whole:
            logits = rows(read, logits)
        return logits.to(self.device, torch.promote_types(logits.dtype, torch.float32))

    def can_narrow(self, read: ReadAt) -> bool:
        """Return whether positions may be left out of the last MLP.

        A bridge adds what the last MLP returns to the whole stream, which one row can be, but not several.
        """
        one = not isinstance(read, Tensor) and len(read) == 1
        return not self.reads and bool(self.last_mlp[0]) and (one or is_hooked_transformer(self.model))

    def _narrowing(self, hooks: Mapping[str, Hook], read: ReadAt, trial: bool) -> list[str]:
        """Name the points at which positions that are not read leave the run: after the last attention, if possible."""
        name, behind = self.last_mlp
        if not trial:
            watched = (self.points[each] for each in behind)
            free = behind.isdisjoint(hooks) and not any(point.fwd_hooks or point.bwd_hooks for point in watched)
            if not (self.narrow.get(name) and self.can_narrow(read) and free):
                return [READ]
        return [name] if is_hooked_transformer(self.model) else [name, READ]

    @cached_property
    def last_mlp(self) -> tuple[str, frozenset[str]]:
        """The hook point at which the last layer's MLP begins, or nothing, and all points from there on."""
        last, config, hooked = self.layers - 1, self.model.cfg, is_hooked_transformer(self.model)
        name = after_attention_name(last) if hooked else f"blocks.{last}.ln2.hook_in"
        parts = ("ln2", "mlp", "hook_mlp", "hook_resid_mid", "hook_resid_post", "hook_out")
        begins = tuple(f"blocks.{last}.{part}" for part in parts)
        behind = frozenset(each for each in self.points if each.startswith((*begins, "ln_final", "unembed")))
        parallel = getattr(config, "parallel_attn_mlp", False) or getattr(config, "attn_only", False)
        flat = getattr(self.points.get(name), "hook_conversion", None) is not None  # as in OPT, rows of all copies
        return ("", frozenset()) if flat or name not in behind or (hooked and parallel) else (name, behind)

    def _skip(self, module: nn.Module, form: OutputForm) -> None:
        """Let a block (or the unembedding) return its input until the current call ends.

        The model's own code still prepares masks, positions, rotations and kept keys and values, and calls every
        block, so a run of the other blocks is the same as in the whole model, for every architecture.
        """
        attributes = vars(module)  # `setattr` of a bridge would change the block inside the bridge
        before = attributes.get("forward")

        def back() -> None:
            attributes.pop("forward", None)
            if before is not None:
                attributes["forward"] = before

        undo_at_end(self.model, back)
        attributes["forward"] = partial(_return_input, form)

    def _drop_patterns(self) -> None:
        """Drop each layer's kept pattern as soon as the layer is done, until the current call ends.

        Bridges with fused queries, keys and values keep the patterns of all layers at once, and, in runs with
        gradients, the graphs of the patterns too. Nothing reads the kept patterns.
        """
        for block in self.model.blocks:
            attention = getattr(block, "attn", None)
            if attention is not None and LAST_PATTERN in vars(attention):
                _drop_pattern(attention)
                _hook_until_end(self.model, attention, _drop_pattern)

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
        for layer, block in enumerate(self.model.blocks):
            _hook_until_end(self.model, block, partial(_note_form, self.output_forms, layer))
        self.run(ids, {**(hooks or {}), **noting}, whole=whole)
        return streams

    @one_at_a_time("self")
    @torch.no_grad()
    def cache(self, ids: Int[Tensor, "1 pos"], kept: Callable[[str], bool] | None = None) -> Any:
        """Run like ``run_with_cache(ids, names_filter=kept)``, but leave no hooks behind when interrupted.

        By default, what methods read is kept, but no patterns that take more than an eighth of the free memory.
        """
        from transformer_lens import ActivationCache

        small = 8 * self.sizes.patterns(ids.shape[1]) <= available(self.device)
        kept = kept or (names_filter if small else lean_names_filter)
        self._drop_patterns()
        activations: dict[str, Tensor] = {}
        noting = [(name, note(activations, name)) for name in self.points if kept(name)]
        with self.hooked(noting, every=False):
            self.model(ids)
        return ActivationCache(activations, self.model)

    @contextmanager
    def hooked(self, hooks: Sequence[tuple[str, Hook]], *, every: bool = True) -> Iterator[None]:
        """Add hooks for a block, check that ``every`` hook fires, and remove exactly the added hooks."""
        fired: set[str] = set()
        added: list[tuple[Any, Any]] = []
        with holding(self):
            undo_at_end(self.model, partial(_remove, added))
            for name, hook in hooks:
                kind = BatchHook if isinstance(hook, BatchHook) else partial
                added.append((self.points[name], kind(_record, fired, name, hook)))
                self.points[name].add_hook(added[-1][1])
            yield
        if every and (silent := dict(hooks).keys() - fired):
            kind = type(self.model).__name__
            raise RuntimeError(f"{kind} ran without passing through {', '.join(sorted(silent))}")

    def user_hooks(self) -> list[Any]:
        """List the hooks that a user put on the model, through TransformerLens or through torch."""
        points = dict.fromkeys(self.points.values())
        hooks = [handle.user_hook for point in points for handle in (*point.fwd_hooks, *point.bwd_hooks)]
        inner = wrapped(self.model)
        modules = self.model.modules() if inner is self.model else {*self.model.modules(), *inner.modules()}
        for module in modules:
            hooks += [hook for kind in TORCH_HOOKS for hook in getattr(module, kind).values()]
        return [hook for hook in hooks if str(getattr(hook, "__module__", "")).split(".")[0] not in LIBRARIES]

    @contextmanager
    def _without_hooks(self) -> Iterator[None]:
        """Take all hooks off the hook points, and put them back."""
        with holding(self):
            for point in {*self.points.values()}:
                undo_at_end(self.model, partial(point._forward_hooks.update, dict(point._forward_hooks)))
                point._forward_hooks.clear()
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Turn gradients on, but off for the parameters, whose flags are restored."""
        with holding(self), torch.inference_mode(False), torch.enable_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    undo_at_end(self.model, partial(parameter.requires_grad_, True))
                    parameter.requires_grad_(False)
            yield

    @cached_property
    def reuse(self) -> KeyValueReuse:
        """The continuation from kept keys and values, for the kind of the model."""
        return (HookedTransformerReuse if is_hooked_transformer(self.model) else BridgeReuse)(self.model, self.layers)

    @torch.no_grad()
    def keys_values(self, ids: Int[Tensor, "1 pos"]) -> KeysValues:
        """Return every layer's keys and values; models that keep no keys and values return fewer pairs than layers."""
        past = self.reuse.resume([], 0, ids.shape[1], 1)
        self.run(ids, past=past)
        return self.reuse.grown(past)

    def check_layer(self, name: str, layer: Any) -> int:
        """Return a layer's number as an int; refuse layers that the model does not have."""
        if not (is_whole(layer) and 0 <= index(layer) < self.layers):
            last, hint = self.layers - 1, from_end(layer, self.layers)
            raise ValueError(f"{name}={layer!r} is none of the layers 0 to {last} this model has{hint}")
        return index(layer)

    def check_points(self, names: Iterable[str]) -> None:
        """Refuse hook points missing from the model, or never reached: one without MLPs has the points of MLPs."""
        absent = "hook_mlp_out" if getattr(self.model.cfg, "attn_only", False) else ()
        for name in names:
            if name not in self.points or name.endswith(absent):
                raise ValueError(f"this {type(self.model).__name__} has no {name}, where this would be put in")


BEFORE_ATTENTION = re.compile(r"\.(ln1\..*|hook_(resid_pre|attn_in|[qkv]_input)|attn\.hook_(rot_)?[qkv])$")


def _blocks_before(name: str, every: int) -> int:
    """Return how many blocks have to run until a hook point fires."""
    place = re.match(r"blocks\.(\d+)\.", name)
    return every if place is None else int(place[1]) + 1


def _record(fired: set[str], name: str, function: Hook, activation: Tensor, hook: Any) -> Tensor | None:  # noqa: ARG001
    fired.add(name)
    return function(activation)


def _remove(added: Iterable[tuple[Any, Any]]) -> None:
    """Remove hooks from their points, and hooks that an interrupted ``add_hook`` registered with torch alone."""
    for point, hook in added:
        for key, function in list(point._forward_hooks.items()):
            for cell in getattr(function, "__closure__", None) or ():
                if cell.cell_contents is hook:
                    point._forward_hooks.pop(key, None)
        for handle in list(point.fwd_hooks):
            if handle.user_hook is hook:
                point.fwd_hooks.remove(handle)


def _hook_until_end(model: Any, module: nn.Module, hook: Callable[..., None]) -> None:
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


def _drop_pattern(attention: Any, *_: Any) -> None:
    vars(attention)[LAST_PATTERN] = None
