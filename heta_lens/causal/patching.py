"""Activation patching: clean activations in a corrupted run, or values of a prompt in another prompt.

The grids are the grids of `transformer_lens.patching`, cell for cell. But many cells run at once, and the clean
activations come from a live run, so a cache needs only the activations that `names_filter` keeps.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import torch

from heta_lens._util.numerics import check_finite
from heta_lens._util.options import Batch, check_choice, chosen_positions
from heta_lens._util.work import working
from heta_lens.causal.grid import Grid
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import EMBED, values_name
from heta_lens.model.lock import holding, one_at_a_time
from heta_lens.prediction.cache import Activations, Tokens, check_causal
from heta_lens.prediction.patching import cells_of_heads, check_reading, noted, patched, site_name, values_put
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

ByPosition: TypeAlias = Literal["resid_pre", "attn_out", "mlp_out"]
ByHead: TypeAlias = Literal["head_out", "head_q", "head_k", "head_v"]


# -------------------------------------------------------------------------------------------------------- prompt pairs
def shared_adapter(cache: Any, other_cache: Any) -> ModelAdapter:
    """Return the adapter of the model behind two caches; refuse caches of different models."""
    adapter = ModelAdapter.of(cache)
    if ModelAdapter.of(other_cache).model is not adapter.model:
        raise ValueError("the two caches are of two models: take both from the same one")
    return adapter


# ---------------------------------------------------------------------------------------------------------- the grid
@one_at_a_time("clean_cache")
def patch(
    clean_cache: Any,
    corrupted_cache: Any,
    target: TargetLike = None,
    *,
    what: ByPosition | ByHead = "resid_pre",
    tokens: Tokens = None,
    corrupted_tokens: Tokens = None,
    positions: Sequence[SupportsIndex] | None = None,
    layers: Sequence[SupportsIndex] | None = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Grid:
    """Patch one clean activation at a time into the corrupted run, and measure the target.

    ``what`` is the patched activation, of one layer at a time:

    - ``resid_pre``, ``attn_out``, ``mlp_out``: the input of the layer, or the output of its attention or MLP; a column
      per position.
    - ``head_out``, ``head_q``, ``head_k``, ``head_v``: the output of a head, its queries, keys or values, at every
      position together; a column per head. Keys and values have fewer heads if queries share them.

    Args:
        clean_cache: the cache of the prompt after which the target is likely.
        corrupted_cache: the cache of a prompt of as many tokens after which the target is less likely, by the same
            model.
        target: the target, as in `attribute`; by default the model's next token after the clean prompt.
        tokens: the ids of the clean prompt; by default they are read off the cached embeddings.
        corrupted_tokens: the ids of the corrupted prompt.
        positions: the patched positions, a column per position; together, if columns are heads.
        layers: the patched layers, a row per layer in ascending order.
        scale: the scale of the grid; ``logit`` and a pair of targets make the logit difference.
        batch: the number of copies of the corrupted prompt that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.

    Example:
        >>> other = model.to_tokens("Leo put the key in the bag. Question: Where did Leo put the key? Answer: in the")
        >>> _, corrupted = model.run_with_cache(other)
        >>> grid = heta_lens.causal.patch(cache, corrupted, " box", tokens=tokens, corrupted_tokens=other)
        >>> grid.values.shape  # a row per layer, a column per position
        torch.Size([6, 22])
    """
    check_choice("what", what, (*get_args(ByPosition), *get_args(ByHead)))
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    chosen = range(adapter.layers) if layers is None else layers
    rows, by_position = sorted({adapter.check_layer("layer", layer) for layer in chosen}), what in get_args(ByPosition)
    if not rows:
        raise ValueError("layers is empty: name at least one layer")
    names = [site_name(adapter, what, layer) for layer in rows]
    adapter.check_points(names)
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    try:
        corrupted = Prediction.from_cache(corrupted_cache, clean.target, tokens=corrupted_tokens)
    except ValueError as error:
        raise ValueError(str(error).replace("tokens=", "corrupted_tokens=")) from None
    if len(clean) != len(corrupted):
        counts = f"the corrupted prompt has {len(corrupted)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of the same length")
    check_scale(clean.target, scale, "log_prob")
    if layers is None:  # of an activation, no block above is run
        rows, names = rows[: clean.adapter.layers], names[: clean.adapter.layers]
    if rows[-1] >= clean.adapter.layers:
        raise ValueError(f"layer {rows[-1]} comes after the activation: choose from 0 to {clean.adapter.layers - 1}")
    places = chosen_positions("positions", positions, len(corrupted), "of the prompts")
    with clean.running(), corrupted.running():
        activations, batches = noted(clean, names), corrupted.batches(batch)
        if by_position:
            columns, labels = tuple(places), tuple(corrupted.written[place] for place in places)
            cells = torch.eye(len(corrupted)).bool()[places]
        else:
            columns = tuple(range(activations[names[0]].shape[2]))
            labels = tuple(f"head {head}" for head in columns)
            cells = cells_of_heads(len(columns), places, len(corrupted))
        read = partial(corrupted.read, scale=scale)
        with working({"forwards": len(rows) * len(columns)}, progress):
            runs = [patched(corrupted, {name: cells}, activations, read, batches).cpu() for name in names]
    for name, row in zip(names, runs, strict=True):
        check_finite(row, lambda _, value, name=name: f"the likelihood with clean activations at {name} is {value}")
    return Grid(
        title=f"patching {what}: {clean.target_words}",
        values=torch.stack(runs),
        labels=labels,
        clean=float(clean.read(clean.logits, scale)),
        corrupted=float(read(corrupted.logits)),
        forwards=len(rows) * len(columns) + 1,
        layers=tuple(rows),
        columns=columns,
        of_heads=not by_position,
    )


# --------------------------------------------------------------------------------------------------------- value swaps
@contextmanager
def swap_values(
    cache_a: Any, cache_b: Any, layer: int, positions: Sequence[int], *, tokens: Tokens = None
) -> Iterator[Any]:
    """Give the model the values of prompt A at the positions of a layer, in every run inside ``with``.

    ``with`` gives the cache of prompt B under the swap, to be explained: ``attribute(cache, target, tokens=...)``. Runs
    begin with their first token: a run that continues kept keys and values, as ``generate`` does by default, is
    refused.

    Args:
        cache_a: the cache of the prompt that the values come from.
        cache_b: the cache of the prompt that runs under the swap, by the same model.
        layer: the layer whose value vectors are swapped, in every head.
        positions: the positions, the same in the two prompts; shorter runs are not changed.
        tokens: the ids of prompt B; by default they are read off its cached embeddings.
    """
    adapter = shared_adapter(cache_a, cache_b)
    adapter.check_layer("layer", layer)
    with holding(adapter, users_code=True):
        prediction, given = Prediction.from_cache(cache_b, tokens=tokens), Activations.of(cache_a)
        check_causal(adapter, given)  # with positions left out, others would be swapped
        shorter = min(len(prediction), len(given[EMBED]))
        places = chosen_positions("positions", positions, shorter, "that both prompts have")
        with values_put(prediction, places, given[values_name(layer)], layer):
            yield prediction.adapter.cache(prediction.ids[None])
