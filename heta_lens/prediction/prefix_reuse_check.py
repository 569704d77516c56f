"""Whether a model really continues from kept keys and values: tried on each prompt with one run from the middle."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.tolerance import distance
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED
from heta_lens.model.hooking import put
from heta_lens.model.model_protocol import KeysValues

LIKELY = 10  # nats below the most likely token, within which an absolute difference matters to what is measured


def reusable_prefix(
    adapter: ModelAdapter,
    ids: Int[Tensor, "pos"],
    embeddings: Float[Tensor, "pos d"],
    log_probs: Float[Tensor, "vocab"],
    hooked: bool,
) -> tuple[KeysValues | None, str]:
    """Keys and values that later runs can start from, or None and why not.

    Whether a model really continues from them is measured, with one run from the middle, and not derived from its
    kind: some models ignore them silently.
    """
    if hooked:
        return None, "off: hooks on the model may depend on positions, so every run is full length"
    if len(ids) < 2:
        return None, "off: the context is a single token"
    try:
        kept = adapter.keys_values(ids[None])
        start = len(ids) // 2
        with torch.no_grad():
            past = adapter.resume(kept, start, len(ids), 1)
            resumed = adapter.run(ids[None, start:], {EMBED: put(embeddings[None, start:])}, past=past)[0, 0]
        grown = adapter.reuse.grown(past)
    except Exception as error:  # whatever a model raises when it is run in a way it does not support
        return None, f"off: this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
    if len(kept) < adapter.layers:
        return None, f"off: only {len(kept)} of this model's {adapter.layers} layers keep keys and values"
    changed = _changed(kept, grown, 2 * adapter.rounding) or _changed_prediction(
        resumed.log_softmax(-1), log_probs, 2 * adapter.rounding
    )
    return (None, f"off: continuing from kept keys and values changes {changed}") if changed else (kept, "on")


def _changed(kept: KeysValues, grown: KeysValues, least: float) -> str:
    """Which layer's keys and values differ, if any do: a prediction close to certain would hide much."""
    for layer, pairs in enumerate(zip(kept, grown, strict=True)):
        for before, after in zip(*pairs, strict=True):
            if before.shape != after.shape:
                return f"those of layer {layer} (from shape {list(before.shape)} to {list(after.shape)})"
            off, allowed = distance(after, before, least)
            if not off <= allowed:
                return f"those of layer {layer} (off by {off:.1e})"
    return ""


def _changed_prediction(now: Float[Tensor, "vocab"], clean: Float[Tensor, "vocab"], allowed: float) -> str:
    """How far the prediction is off, if it is: the likely tokens in nats, all others beside the least likely."""
    likely = clean > clean.max() - LIKELY
    gap = float((now - clean)[likely].abs().max())
    if not gap <= allowed:
        return f"the prediction by {gap:.1e} nats"
    off = distance(now, clean).relative
    return "" if off <= allowed else f"the prediction of unlikely tokens (off by {off:.1e})"
