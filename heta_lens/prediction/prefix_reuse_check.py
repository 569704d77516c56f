"""Whether a model really continues from kept keys and values: tried on each prompt with one run from the middle."""

import torch
from torch import Tensor

from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import EMBED
from heta_lens.model.hooking import put
from heta_lens.model.model_protocol import KeysValues


def reusable_prefix(
    adapter: ModelAdapter, ids: Tensor, embeddings: Tensor, log_probs: Tensor, hooked: bool
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
    except Exception as error:  # whatever a model raises when it is run in a way it does not support
        return None, f"off: this model cannot continue from kept keys and values ({type(error).__name__}: {error})"
    gap = float((resumed.log_softmax(-1) - log_probs).abs()[log_probs > log_probs.max() - 10].max())
    if gap > 2 * adapter.rounding:
        return None, f"off: continuing from kept keys and values changes the prediction by {gap:.1e} nats"
    return kept, "on"
