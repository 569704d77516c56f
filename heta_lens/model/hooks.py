"""The names of the hook points heta_lens reads and patches; a HookedTransformer and a TransformerBridge share them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from einops import einsum, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heta_lens.model.lock import changing, one_at_a_time, undo_at_end

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


# ------------------------------------------------------------------------------------------------------ model protocol
# What heta_lens needs of a model, whichever kind it is.


KeysValues: TypeAlias = list[tuple[Tensor, Tensor]]  # one pair per layer, laid out as this kind of model keeps them


@runtime_checkable
class Model(Protocol):
    """What heta_lens needs of a model: both HookedTransformer and TransformerBridge have all of it.

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


def wrapped(model: Any) -> Any:
    """The Hugging Face model inside a bridge, whose root is not one of the bridge's modules; else the model itself."""
    return getattr(model, "original_model", model)


def bare(module: Any) -> Any:
    """The Hugging Face module inside a module of a bridge, which no hook of TransformerLens watches; else itself."""
    return getattr(module, "original_component", module)


# ------------------------------------------------------------------------------------------------------------- hooking
# Hooks on a model: added for the length of a ``with`` block, checked to have fired, and taken off again.


Hook: TypeAlias = Callable[[Tensor], Tensor | None]  # reads an activation, and may return another in its place

TORCH_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class BatchHook(partial[Any]):
    """A hook that stays over many runs, for any number of copies of a prompt at once, each from its first token on."""


class PositionHook(partial[Any]):
    """A hook that works on each position independently, so it may be given only some of them."""


class Added(NamedTuple):
    """A hook function and the hook point it was added to."""

    point: Any
    function: Any


# ------------------------------------------------------------------------------------------------- what hooks are for
def put(states: Float[Tensor, "batch pos d"]) -> Hook:
    """Replace what a run computes at a hook point by these states."""
    return partial(_put, states)


def _put(states: Tensor, live: Tensor) -> Tensor:
    return states.to(live)


def put_positions(clean: Float[Tensor, "pos d"], start: int, stop: int) -> Hook:
    """Replace what a run computes at ``start:stop`` by the clean states of these positions, in every copy."""
    return partial(_put_positions, clean[start:stop], start)


def _put_positions(rows: Float[Tensor, "some d"], start: int, live: Float[Tensor, "batch pos d"]) -> Tensor:
    clean = repeat(rows, "pos d -> batch pos d", batch=len(live)).to(live)
    return torch.cat([live[:, :start], clean, live[:, start + len(rows) :]], 1)


def put_where(places: Bool[Tensor, "copy pos"], rows: Float[Tensor, "row ..."]) -> Hook:
    """Replace what a run computes at these places of each copy, in order; a run may be longer."""
    return partial(_put_where, places, rows)


def _put_where(places: Tensor, rows: Tensor, live: Float[Tensor, "copy pos ..."]) -> Tensor:
    patched = live.clone()
    patched[:, : places.shape[1]][places] = rows.to(live)
    return patched


def put_at(copies: Bool[Tensor, "copy"], position: int, state: Float[Tensor, "..."]) -> Hook:
    """Replace what a run computes at one position, in some of the copies."""
    return partial(_put_at, copies, position, state)


def _put_at(copies: Tensor, position: int, state: Tensor, live: Float[Tensor, "copy pos ..."]) -> Tensor:
    patched = live.clone()
    patched[copies, position] = state.to(live)
    return patched


Places: TypeAlias = Sequence[int] | Int[Tensor, "batch read"]  # where logits are read: in all copies alike, or in each


def rows(read: Places, live: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch read d"]:
    """What a run computes at these positions only."""
    if isinstance(read, Tensor):
        return live.gather(1, repeat(read.to(live.device), "batch read -> batch read d", d=live.shape[-1]))
    return live[:, list(read)]


def note(activations: dict[Any, Tensor], key: Any) -> Hook:
    """Store the activation under this key."""
    return partial(activations.__setitem__, key)


# -------------------------------------------------------------------------------------------------- adding, taking off
@contextmanager
def hooked(
    model: Model, points: Mapping[str, Any], hooks: Sequence[tuple[str, Hook]], *, every: bool = True
) -> Iterator[None]:
    """Add hooks for the length of a block, check that ``every`` one of them fires, and take exactly these off again."""
    fired: set[str] = set()
    added = _recorded(points, hooks, fired)
    with changing(model, partial(_take_off, added)):
        _add(added)
        yield
    if every:
        _check_fired(model, hooks, fired)


@one_at_a_time("model")
def run_hooked(
    model: Model, points: Mapping[str, Any], hooks: Sequence[tuple[str, Hook]], ids: Tensor, **arguments: Any
) -> Tensor:
    """A single run with hooks, each of which must fire; they end with it."""
    fired: set[str] = set()
    added = _recorded(points, hooks, fired)
    undo_at_end(model, partial(_take_off, added))
    _add(added)
    output = model(ids, **arguments)
    _check_fired(model, hooks, fired)
    return output


def _recorded(points: Mapping[str, Any], hooks: Sequence[tuple[str, Hook]], fired: set[str]) -> list[Added]:
    """The same hooks, which record that they ``fired``."""
    added: list[Added] = []
    for name, function in hooks:
        kind = type(function) if isinstance(function, BatchHook | PositionHook) else partial
        added.append(Added(points[name], kind(_record, fired, name, function)))
    return added


def _record(fired: set[str], name: str, function: Hook, activation: Tensor, hook: Any) -> Tensor | None:  # noqa: ARG001
    """A hook (which is called with its point, by name) that records that it was called."""
    fired.add(name)
    return function(activation)


def _add(added: Sequence[Added]) -> None:
    for point, hook in added:
        point.add_hook(hook)


def _check_fired(model: Model, hooks: Sequence[tuple[str, Hook]], fired: set[str]) -> None:
    silent = {name for name, _ in hooks} - fired
    if silent:
        raise RuntimeError(f"{type(model).__name__} ran without passing through {', '.join(sorted(silent))}")


def _take_off(added: Sequence[Added]) -> None:
    """Take hooks off their points, also those that torch has and TransformerLens has not listed yet."""
    for point, function in added:
        for key, other in list(point._forward_hooks.items()):
            if _closes_over(other, function):
                point._forward_hooks.pop(key, None)
        point.fwd_hooks[:] = [handle for handle in point.fwd_hooks if handle.user_hook is not function]


def _closes_over(function: Any, value: Any) -> bool:
    return any(cell.cell_contents is value for cell in getattr(function, "__closure__", None) or ())


def check_points(model: Model, points: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse hook points that this model does not have."""
    bare = bool(getattr(model.cfg, "attn_only", False))  # a model that has its MLPs' hooks, but no MLPs
    missing = [name for name in names if name not in points or (bare and name.endswith("mlp_out"))]
    if missing:
        raise ValueError(f"this {type(model).__name__} has no {missing[0]}, where this would be put in")


# ---------------------------------------------------------------------------------------------------- the user's hooks
def user_hooks(model: Model, points: Mapping[str, Any]) -> list[Any]:
    """Hooks that somebody else put on the model, through TransformerLens or through torch."""
    distinct = {id(point): point for point in points.values()}.values()
    modules = {id(module): module for module in (*model.modules(), *wrapped(model).modules())}.values()
    return [handle.user_hook for point in distinct for handle in (*point.fwd_hooks, *point.bwd_hooks)] + [
        hook
        for module in modules
        for kind in TORCH_HOOKS
        for hook in getattr(module, kind).values()
        if not _belongs_to_library(hook)
    ]


def _belongs_to_library(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or ""
    return module.split(".")[0] in ("transformers", "transformer_lens", "accelerate")


# -------------------------------------------------------------------------------------------------------- head outputs
# What attention heads write into the residual stream, also where query heads share a group's values.


def head_outputs(
    values: Float[Tensor, "pos group d_head"], output: Float[Tensor, "head d_head d"]
) -> Float[Tensor, "head pos d"]:
    """``v_i W_O``: what each head would write if it attended to one position only."""
    shared = repeat(values, "pos group d_head -> pos (group share) d_head", share=len(output) // values.shape[1])
    return einsum(shared, output, "pos head d_head, head d_head d -> head pos d")
