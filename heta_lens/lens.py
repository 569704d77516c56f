"""The one file that knows TransformerLens: how a model is run, hooked and read, whichever kind and version it is.

A `HookedTransformer` (TransformerLens 3) and a `TransformerBridge` (3 and 4) share their hook names; they differ in how
a prefix is reused, and that difference ends here.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import index
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from heta_lens.memory import Sizes
from heta_lens.options import from_end, is_whole
from heta_lens.progress import count
from heta_lens.text import Speller, brief
from heta_lens.turns import changing, one_at_a_time

EMBED = "hook_embed"
READ = "unembed.hook_in"  # what the last layer norm hands to the unembedding
OUT = "unembed.hook_out"

Hook: TypeAlias = Callable[[Tensor], Tensor | None]  # sees an activation, and may return another in its place
Places: TypeAlias = Sequence[int] | Int[Tensor, "batch read"]  # where every prompt is read, or each for itself
KeysValues: TypeAlias = list[tuple[Tensor, Tensor]]  # one pair a layer, laid out as this kind of model keeps them


def names_filter(name: str) -> bool:
    """The activations heta_lens reads: ``model.run_with_cache(tokens, names_filter=heta_lens.names_filter)``.

    They end where the unembedding begins, so a change of the unembedding since then is seen in a full cache only.
    """
    return name in (EMBED, READ) or re.fullmatch(r"blocks\.\d+\.attn\.hook_(pattern|v)", name) is not None


def pattern_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_pattern"


def values_name(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_v"


def queries_keys_names(layer: int) -> tuple[str, str]:
    """What a pattern is made of. Some bridges let it be seen only after it was used, but never these."""
    return f"blocks.{layer}.attn.hook_q", f"blocks.{layer}.attn.hook_k"


def head_outputs_name(layer: int) -> str:
    """What every head has gathered, before it is written to the stream."""
    return f"blocks.{layer}.attn.hook_z"


def added_names(layer: int) -> tuple[str, str]:
    """What a layer's attention and its MLP add to the stream."""
    return f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out"


def put(states: Float[Tensor, "batch pos d"]) -> Hook:
    """Let these stand in for what a run computes at a place."""
    return lambda live: states.to(live)


class BatchHook(partial[Any]):
    """A hook that stays over many runs, for any number of copies of a prompt at once, each from its first token on."""


@runtime_checkable
class Model(Protocol):
    """What heta_lens asks of a model: all of it is in both HookedTransformer and TransformerBridge.

    Their submodules ``embed`` and ``blocks`` too, but a structural check cannot see the submodules of a torch module.
    """

    cfg: Any
    tokenizer: Any
    training: bool

    @property
    def hook_dict(self) -> dict[str, Any]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True, eq=False)
class Lens:
    """A live model, seen as: ids (or embeddings) in, logits at one position out."""

    def __repr__(self) -> str:
        return brief(self)

    model: Model

    @classmethod
    def of(cls, cache: Any) -> "Lens":
        """The model a cache was taken from, refused in one sentence if it is none that can be explained."""
        model = getattr(cache, "model", None)
        if model is None and hasattr(cache, "cache_dict"):
            raise TypeError(
                "the cache has no model (cache.model is None): set cache.model to the model it was taken from"
            )
        if model is None:
            raise TypeError(
                f"a {type(cache).__name__} is no cache with its model: pass the ActivationCache, the second of the two "
                "things that model.run_with_cache returns"
            )
        check_decoder(model)
        return cls(model)

    @property
    def blocks(self) -> Any:
        return cast(Any, self.model).blocks

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def stream_name(self, layer: int) -> str:
        """The residual stream entering a layer; of as many layers as there are, what leaves the last one."""
        return f"blocks.{layer}.hook_resid_pre" if layer < self.layers else f"blocks.{layer - 1}.hook_resid_post"

    @property
    def token_weights(self) -> Float[Tensor, "vocab d"]:
        """The raw embedding weights; they tell the model's device, type and vocabulary."""
        return cast(Any, self.model).embed.W_E.detach()

    @property
    def device(self) -> torch.device:
        return self.token_weights.device

    @property
    def speller(self) -> Speller:
        return Speller(self.model.tokenizer)

    @property
    def vocabulary(self) -> int:
        return len(self.token_weights)

    @cached_property
    def sizes(self) -> Sizes:
        config, weights = self.model.cfg, self.token_weights
        d = int(config.d_model)
        d_mlp = int(getattr(config, "d_mlp", None) or 4 * d)
        return Sizes(self.layers, d, d_mlp, int(config.n_heads), self.vocabulary, weights.element_size())

    def output_weights(self, layer: int) -> Float[Tensor, "head d_head d"]:
        return self.blocks[layer].attn.W_O.detach()

    @one_at_a_time("self")
    @torch.no_grad()
    def embedding_table(self, ids: Sequence[int] | None = None) -> Float[Tensor, "token d"]:
        """What the embedding modules return (scaled and normalised where the model does), hooks aside; for every id."""
        table = torch.tensor([range(self.vocabulary) if ids is None else ids], device=self.device)
        for name in ("embed", "embed_ln"):
            module = getattr(self.model, name, None)
            if module is not None:
                # The bare module may differ in the last bit from its bridge, but no hook sees what it is asked.
                bare = getattr(module, "original_component", module).forward
                table = bare(table) if self.user_hooks() else module(table)
        return table[0]

    @one_at_a_time("self")
    def run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Mapping[str, Hook] | None = None,
        *,
        read: Places = (-1,),
        whole: bool = False,
        past: Mapping[str, Any] | None = None,
    ) -> Float[Tensor, "batch read vocab"]:
        """Logits at the places ``read``, in float32 or better; ``hooks`` watch activations or replace them.

        Only these positions are unembedded, unless the ``whole`` run has to look as it always does to somebody's hooks.
        """
        added = list((hooks or {}).items())
        if not whole:
            added.append((READ, lambda live: _rows(live, read)))
        with self.hooked(added):
            count("forwards", len(ids))
            logits = self.model(ids, **(past or {}))
        logits = _rows(logits, read) if whole else logits
        return logits.to(self.device, torch.promote_types(logits.dtype, torch.float32))

    @torch.no_grad()
    def streams(
        self,
        ids: Int[Tensor, "batch pos"],
        layers: Sequence[int],
        hooks: Mapping[str, Hook] | None = None,
        *,
        whole: bool = False,
    ) -> dict[int, Float[Tensor, "batch pos d"]]:
        """What enters these layers in one run (of as many as there are: what leaves the last)."""
        seen: dict[int, Tensor] = {}
        watch = {self.stream_name(layer): partial(_note, seen, layer) for layer in layers}
        self.run(ids, {**(hooks or {}), **watch}, whole=whole)
        return seen

    @one_at_a_time("self")
    @torch.no_grad()
    def cache(self, ids: Int[Tensor, "1 pos"]) -> Any:
        """What ``run_with_cache(ids, names_filter=names_filter)`` gives, which leaves its own hooks when broken off."""
        from transformer_lens import ActivationCache

        seen: dict[str, Tensor] = {}
        with self.hooked(
            [(name, partial(_note, seen, name)) for name in self.points if names_filter(name)], every=False
        ):
            self.model(ids)
        return ActivationCache(seen, cast(Any, self.model))

    @torch.no_grad()
    def keys_values(self, ids: Int[Tensor, "1 pos"]) -> KeysValues:
        """Every layer's keys and values; fewer than its layers for a model that keeps none."""
        past = self.resume([], 0, ids.shape[1], 1)
        self.run(ids, past=past)
        return self.grown(past)

    def resume(self, keys_values: KeysValues, start: int, stop: int, batch: int) -> dict[str, Any]:
        """Arguments with which a run of positions ``start:stop`` continues the first ``start``, unchanged.

        Made anew for every run, because the run appends to what it is given: `grown` reads it.
        """
        axis = self._position_axis
        past = [tuple(kept.narrow(axis, 0, start).expand(batch, -1, -1, -1) for kept in pair) for pair in keys_values]
        if self._is_hooked_transformer:
            from transformer_lens import TransformerLensKeyValueCache, TransformerLensKeyValueCacheEntry

            empty = TransformerLensKeyValueCache.init_cache(self.model.cfg, self.device, batch)
            entries = [TransformerLensKeyValueCacheEntry(k, v) for k, v in past] or empty.entries
            attend = torch.ones(batch, stop, dtype=torch.int, device=self.device)
            return {
                "past_kv_cache": TransformerLensKeyValueCache(entries, attend[:, :start]),
                "attention_mask": attend[:, start:],
            }
        from transformers import DynamicCache

        # A plain cache: the ones that models make for themselves may keep only their sliding window.
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past if start else []):
            cache.update(keys, values, layer)
        return {"past_key_values": cache}

    def grown(self, past: Mapping[str, Any]) -> KeysValues:
        """The keys and values that a run continued and those it added, every layer's."""
        if self._is_hooked_transformer:
            return [(entry.past_keys, entry.past_values) for entry in past["past_kv_cache"].entries]
        return [(layer.keys, layer.values) for layer in past["past_key_values"].layers]

    def joined(self, before: KeysValues, clean: KeysValues, stop: int) -> KeysValues:
        """Keys and values ``before``, and after them the ``clean`` ones of the positions up to ``stop``."""
        axis = self._position_axis

        def join(head: Tensor, tail: Tensor) -> Tensor:
            start = head.shape[axis]
            tail = tail.narrow(axis, start, stop - start)
            return torch.cat([head, tail.expand(len(head), -1, -1, -1)], axis)

        return [(join(k, kept_k), join(v, kept_v)) for (k, v), (kept_k, kept_v) in zip(before, clean, strict=True)]

    def user_hooks(self) -> list[Any]:
        """Hooks that somebody else put on the model, through TransformerLens or through torch."""
        points = {id(point): point for point in self.points.values()}.values()
        modules = {id(module): module for module in (*self.model.modules(), *wrapped(self.model).modules())}.values()
        return [handle.user_hook for point in points for handle in (*point.fwd_hooks, *point.bwd_hooks)] + [
            hook
            for module in modules
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
            for hook in getattr(module, kind).values()
            if not _belongs_to_library(hook)
        ]

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Gradients on, but for no parameter; the parameters' flags come back as they were."""
        trainable: list[nn.Parameter] = []
        with changing(self.model, partial(_require_gradients, trainable)):
            trainable += [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            with torch.inference_mode(False), torch.enable_grad():
                for parameter in trainable:
                    parameter.requires_grad_(False)
                yield

    def weights(self) -> dict[str, Any]:
        """How the weights were processed: the gate depends on it, although the logits do not."""
        outputs = [self.output_weights(layer).float() for layer in range(self.layers)]
        centred = all(bool(output.mean(-1).abs().max() < 1e-4 * output.abs().mean()) for output in outputs)
        biases = [getattr(block.attn, "b_V", None) for block in self.blocks]
        return {
            "kind": type(self.model).__name__,
            "dtype": str(self.token_weights.dtype).removeprefix("torch."),
            "normalization": getattr(self.model.cfg, "normalization_type", None),
            "compatibility_mode": bool(getattr(self.model, "compatibility_mode", False)),
            "writing_weights_centred": centred,
            "value_biases": any(bias is not None and bool(bias.any()) for bias in biases),
        }

    @cached_property
    def points(self) -> dict[str, Any]:
        return self.model.hook_dict  # which a bridge puts together anew each time

    def check_layer(self, name: str, layer: Any) -> int:
        """This layer as a plain number; refuse one that the model does not have."""
        if not (is_whole(layer) and 0 <= index(layer) < self.layers):
            last = self.layers - 1
            raise ValueError(
                f"{name}={layer!r} is none of the layers 0 to {last} this model has{from_end(layer, self.layers)}"
            )
        return index(layer)

    def check_points(self, names: Iterable[str]) -> None:
        """Refuse what asks for a place that this model does not have."""
        bare = bool(getattr(self.model.cfg, "attn_only", False))  # a model that has its MLPs' hooks, but no MLPs
        missing = [name for name in names if name not in self.points or (bare and name.endswith("mlp_out"))]
        if missing:
            raise ValueError(f"this {type(self.model).__name__} has no {missing[0]}, where this would be put in")

    @property
    def _is_hooked_transformer(self) -> bool:
        return "past_kv_cache" in inspect.signature(cast(nn.Module, self.model).forward).parameters

    @property
    def _position_axis(self) -> int:
        """Of keys and values, as this kind of model keeps them."""
        return 1 if self._is_hooked_transformer else 2

    @contextmanager
    def hooked(self, hooks: Sequence[tuple[str, Hook]], *, every: bool = True) -> Iterator[None]:
        """Add hooks, see that ``every`` one of them fires, and take exactly these away again."""
        fired: set[str] = set()
        added: list[tuple[Any, Any]] = []
        for name, function in hooks:
            kind = BatchHook if isinstance(function, BatchHook) else partial
            added.append((self.points[name], kind(_heard, fired, name, function)))
        with changing(self.model, partial(_take_off, added)):
            for point, hook in added:
                point.add_hook(hook)
            yield
        silent = {name for name, _ in hooks} - fired
        if silent and every:
            raise RuntimeError(f"{type(self.model).__name__} ran without passing through {', '.join(sorted(silent))}")


def _rows(live: Float[Tensor, "batch pos d"], read: Places) -> Float[Tensor, "batch read d"]:
    if isinstance(read, Tensor):
        return live.gather(1, repeat(read, "batch read -> batch read d", d=live.shape[-1]))
    return live[:, list(read)]


def _note(seen: dict[Any, Tensor], key: Any, live: Tensor) -> None:
    seen[key] = live


def _heard(fired: set[str], name: str, function: Hook, activation: Tensor, hook: Any) -> Tensor | None:  # noqa: ARG001
    """A hook (which is called with its point, by name) that tells that it was."""
    fired.add(name)
    return function(activation)


def _require_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(True)


def _take_off(added: Sequence[tuple[Any, Any]]) -> None:
    """Take hooks off their points, also those that torch has and TransformerLens has not listed yet."""
    for point, hook in added:
        for key, other in list(point._forward_hooks.items()):
            if _closes_over(other, hook):
                point._forward_hooks.pop(key, None)
        point.fwd_hooks[:] = [handle for handle in point.fwd_hooks if handle.user_hook is not hook]


def _closes_over(function: Any, value: Any) -> bool:
    return any(cell.cell_contents is value for cell in getattr(function, "__closure__", None) or ())


def check_decoder(model: Any) -> None:
    """Refuse what cannot be explained: no hooks, an encoder, no attention, dropout switched on, no gradients."""
    kind = type(model).__name__
    if not all(hasattr(model, name) for name in ("cfg", "hook_dict")):
        raise TypeError(f"{kind} is not a TransformerLens model")
    points = model.hook_dict
    direction = getattr(model.cfg, "attention_dir", "causal")
    if direction != "causal" or EMBED not in points or not hasattr(model, "blocks") or _is_encoder(model):
        raise ValueError(f"{kind} is not a decoder-only language model, where every token sees only those before it")
    names = [name(layer) for layer in range(max(1, len(model.blocks))) for name in (pattern_name, values_name)]
    missing = [name for name in names if name not in points]
    if missing:
        raise ValueError(f"{kind} has no {missing[0]}: heta_lens explains models that attend in every layer")
    if (name := _in_training(model)) is not None:
        which = f"{name} of the model" if name else "the model"
        raise ValueError(f"{which} is in training mode, where dropout can change every run: call model.eval() first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("the model was made under torch.inference_mode() and has no gradients: make it outside")


# How torch and transformers call the rate of a module that drops out.
RATES = ("p", "dropout", "attention_dropout")


def _in_training(model: Any) -> str | None:
    """The name of what is in training mode: the model (""), or a part that drops out, or None.

    Other parts may be in training mode: those that TransformerLens creates when it processes weights are.
    """
    if model.training or wrapped(model).training:
        return ""
    parts = (both for whole in (model, wrapped(model)) for both in whole.named_modules())
    return next((name for name, module in parts if module.training and _drops_out(module)), None)


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


def wrapped(model: Any) -> Any:
    """The model a bridge stands for, whose root is none of the bridge's modules; else the model itself."""
    return getattr(model, "original_model", model)


def _belongs_to_library(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or ""
    return module.split(".")[0] in ("transformers", "transformer_lens", "accelerate")
