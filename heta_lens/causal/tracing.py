"""Causal tracing (Meng 2022): a run under noise, with the clean state of a position after a layer put back.

The attribution method ``causal_tracing`` reduces the table to a score per token; here the table is complete, noise may
fall on a subject alone, and the outputs of MLPs or attention can be put back in place of the stream.
"""

from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import torch

from heta_lens._util.options import Batch, check_at_least, check_choice, check_count, chosen_positions
from heta_lens._util.work import working
from heta_lens.causal.grid import Grid
from heta_lens.methods.causal_tracing import all_but_bos, noisy_embeddings, traced
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.patching import check_reading, site_name
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

What: TypeAlias = Literal["resid_post", "mlp_out", "attn_out"]


@one_at_a_time("cache")
def trace(
    cache: Any,
    target: TargetLike = None,
    *,
    tokens: Tokens = None,
    position: SupportsIndex | None = None,
    subject: Iterable[int] | None = None,
    what: What = "resid_post",
    window: int = 1,
    noise: float | int = 3.0,
    samples: int = 10,
    seed: int = 0,
    scale: Scale = "prob",
    batch: Batch = "auto",
    progress: bool | None = None,
) -> Grid:
    """Measure the target in a context under noise, with the clean state of a position after a layer put back.

    The grid is a mean over draws of noise. It costs ``samples · (layers · positions + 2) + 1`` runs of the context.
    ``target``, ``tokens`` and ``position`` are those of `attribute`.

    Args:
        subject: the positions whose embeddings are under noise; by default every position but a beginning-of-text
            token.
        what: the state that is put back: the residual stream after the layer (``resid_post``), or the output of the
            layer's MLP or attention (``mlp_out``, ``attn_out``).
        window: the number of layers around the layer whose outputs are put back at once (an even number has one more
            below than above); the first and last layers have fewer. The authors take 10.
        noise: the amount of noise, in standard deviations of the context's embeddings.
        samples: the number of draws of noise.
        seed: the seed of the draws.
        scale: the quantity in the grid, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: the number of copies of the context that run at once.
        progress: show a progress bar; None shows the bar on a terminal or in a notebook.
    """
    check_reading(scale, batch)
    check_choice("what", what, get_args(What))
    check_count("samples", samples)
    check_at_least("window", window, 1, whole=True)
    check_at_least("seed", seed, 0, whole=True)
    check_at_least("noise", noise, 0)
    if window > 1 and what == "resid_post":
        raise ValueError(
            f"window={window} with what='resid_post': the stream after a layer holds what all before it added, so "
            "leave out window=, or put back what='mlp_out' or 'attn_out'"
        )
    adapter = ModelAdapter.of(cache)
    adapter.check_points(site_name(adapter, what, layer) for layer in range(adapter.layers))
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "prob")
    n, layers, corrupted = len(prediction), prediction.layers, all_but_bos(prediction)
    if subject is not None:
        corrupted = torch.zeros(n, dtype=torch.bool)
        corrupted[chosen_positions("subject", subject, n, "of the context")] = True
    below = window // 2
    rows = [range(max(0, layer - below), min(layer - below + window, layers)) for layer in range(layers)]
    with prediction.running(), working({"forwards": samples * (layers * n + 2) + 1}, progress) as work:
        noisy = noisy_embeddings(prediction, corrupted, noise, samples, seed)
        restored, low = traced(prediction, noisy, what, rows, scale, prediction.batches(batch))
    values = restored.mean(0).cpu()
    for layer, row in enumerate(values):
        prediction.check_finite(f"the target's likelihood with {what} of layer {layer} put back", row)
    several = f" of {min(window, layers)} layers" if min(window, layers) > 1 else ""
    title = f"causal tracing, {what}{several}: {prediction.target_words}"
    return Grid(
        title=title,
        values=values,
        labels=prediction.written,
        clean=float(prediction.read(prediction.logits, scale)),
        corrupted=float(low.mean()),
        forwards=work.ran["forwards"],
        layers=tuple(range(layers)),
        columns=tuple(range(n)),
    )
