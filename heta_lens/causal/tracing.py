"""Causal tracing (Meng 2022): a run under noise, with the clean state of a position after a layer put back.

The attribution method ``causal_tracing`` reduces the table to a score per token; here the table is complete, noise may
fall on a subject alone, and the outputs of MLPs or attention can be put back in place of the stream.
"""

from collections.abc import Iterable
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from heta_lens._util.options import Batch, check_at_least, check_choice, check_count, chosen_positions
from heta_lens._util.work import working
from heta_lens.causal.patching import Grid, site_name
from heta_lens.methods.causal_tracing import all_but_bos, with_noise
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import put_where
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.patching import check_reading, picked
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

    The grid is a mean over draws of noise. It costs ``samples · (layers · positions + 1) + 2`` runs of the context.
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
    names = [site_name(adapter, what, layer) for layer in range(adapter.layers)]
    adapter.check_points(names)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "prob")
    n, embeddings, corrupted = len(prediction), prediction.embeddings[None], all_but_bos(prediction)
    if subject is not None:
        places = torch.tensor(chosen_positions("subject", subject, n, "of the context"))
        corrupted = torch.zeros(n, dtype=torch.bool).index_fill(0, places, True)

    cost = samples * (adapter.layers * n + 1) + 2
    with prediction.running(), working({"forwards": cost}, progress) as work, torch.no_grad():
        batches = prediction.prompt.batches(batch, n)
        states = picked(prediction, embeddings, 0, dict.fromkeys(names, lambda live: live[0, :n].clone()))

        def restored(noisy: Float[Tensor, "pos d"], layer: int) -> Float[Tensor, "pos"]:
            """Return the likelihood under noise with the states of each position in turn put back around a layer."""
            start = layer - window // 2
            put_back = names[max(0, start) : start + window]

            def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
                places = one_hot(positions, n).bool()
                with adapter.hooked([(name, put_where(places, states[name][positions])) for name in put_back]):
                    return likelihood(prediction, repeat(noisy, "pos d -> copy pos d", copy=len(positions)), scale)

            return batches.map(run, torch.arange(n, device=noisy.device), n)

        clean = likelihood(prediction, embeddings, scale)
        draws = [with_noise(prediction, corrupted, noise, index(seed), sample) for sample in range(samples)]
        low = torch.cat([likelihood(prediction, noisy[None], scale) for noisy in draws]).mean(0)
        measured = [torch.stack([restored(noisy, layer) for noisy in draws]) for layer in range(adapter.layers)]
        values = torch.stack([row.mean(0) for row in measured]).cpu()
    for layer, row in enumerate(values):
        prediction.check_finite(f"the target's likelihood with {what} of layer {layer} put back", row)
    most = min(window, adapter.layers)
    title = f"causal tracing, {what}{f' of {most} layers' * (most > 1)}: {prediction.target_words}"
    return Grid(title, values, prediction.written, float(clean), float(low), work.ran["forwards"])
