"""Causal tracing (Meng 2022): after which layer, and at which token, what a clean run had there brings the target back.

The baseline of this name reduces it to one score per token; here the whole table is available, noise may fall on a
subject alone, and what MLPs or attention add to the stream can be put back in place of the stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from heta_lens._util.options import Batch, check_at_least, check_choice, check_count, chosen_positions
from heta_lens._util.work import Done, working
from heta_lens.causal.patching import Grid
from heta_lens.methods.causal_tracing import all_but_bos, with_noise
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.hooks import added_names, put_where
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.checks import Tokens
from heta_lens.prediction.gradients import likelihood
from heta_lens.prediction.patching import check_reading, picked
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import Scale, TargetLike, check_scale

What: TypeAlias = Literal["resid_post", "mlp_out", "attn_out"]
States: TypeAlias = Mapping[str, Float[Tensor, "pos d"]]  # by the hook where they were read


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
    """How likely the target is in a context under noise, with what was clean at one position after a layer put back.

    A mean over several draws of noise. It costs ``samples · (layers · positions + 1) + 2`` runs of the context.

    Args:
        cache: of the clean prompt.
        target: as `attribute` is given it.
        tokens: as `attribute` is given them.
        position: as `attribute` is given it.
        subject: the positions whose embeddings are under noise; by default all but a token that only says that the
            text begins.
        what: is put back: the residual stream after the layer (``resid_post``), or what the layer's MLP or attention
            adds to it (``mlp_out``, ``attn_out``).
        window: of what is added, of how many layers it is put back at once, around the layer (of an even number, one
            more is below it than above); of fewer at both ends. The authors take 10.
        noise: in standard deviations of the context's embeddings.
        samples: how often noise is drawn.
        seed: of the noise.
        scale: what the grid holds, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: how many copies of the context run at once.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    check_reading(scale, batch)
    _check(what, window, noise, samples, seed)
    adapter = ModelAdapter.of(cache)
    names = _names(adapter, what)
    adapter.check_points(names)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    check_scale(prediction.target, scale, "prob")
    corrupted, cost = _corrupted(prediction, subject), samples * (adapter.layers * len(prediction) + 1) + 2
    with prediction.running(), working({"forwards": cost}, progress) as work, torch.no_grad():
        done = partial(work.add, "forwards")
        activations = _activations(prediction, names, done)
        clean = likelihood(prediction, prediction.embeddings[None], scale, done)
        draws = [with_noise(prediction, corrupted, noise, index(seed), sample) for sample in range(samples)]
        low = torch.cat([likelihood(prediction, noisy[None], scale, done) for noisy in draws]).mean(0)
        restored = partial(_restored, prediction, prediction.prompt.batches(batch, len(prediction)), scale, done)
        rows = [[restored(noisy, states) for noisy in draws] for states in _windows(activations, window)]
        values = torch.stack([torch.stack(row).mean(0) for row in rows])
    for layer, row in enumerate(values):
        prediction.check_finite(f"the target's likelihood with {what} of layer {layer} put back", row)
    together = min(window, adapter.layers)
    put_back = f"{what} of {together} layers" if together > 1 else what
    title = f"causal tracing, {put_back}: {prediction.target_words}"
    return Grid(title, values.cpu(), prediction.written, float(clean), float(low), work.done["forwards"])


def _names(adapter: ModelAdapter, what: What) -> list[str]:
    """Where in each layer it is read, and put back."""
    layers = range(adapter.layers)
    if what == "resid_post":
        return [adapter.stream_name(layer + 1) for layer in layers]
    return [added_names(layer)[what == "mlp_out"] for layer in layers]


def _activations(prediction: Prediction, names: Sequence[str], done: Done) -> States:
    """What is there in the clean run."""

    def pick(live: Float[Tensor, "1 longer d"]) -> Float[Tensor, "pos d"]:
        return live[0, : len(prediction)].clone()

    activations = picked(prediction, prediction.embeddings[None], 0, dict.fromkeys(names, pick))
    done(1)
    return {name: activations[name] for name in names}


def _windows(activations: States, window: int) -> list[States]:
    """For each layer what is put back together: of so many layers around it, as many as there are."""
    each = list(activations.items())
    starts = [layer - window // 2 for layer in range(len(each))]
    return [dict(each[max(0, start) : start + window]) for start in starts]


def _restored(
    prediction: Prediction, batches: Batches, scale: Scale, done: Done, noisy: Float[Tensor, "pos d"], states: States
) -> Float[Tensor, "pos"]:
    """How likely the target is under noise, for each position at which these states are put back."""

    def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
        places = one_hot(positions, len(prediction)).bool()
        hooks = [(name, put_where(places, clean[positions])) for name, clean in states.items()]
        with prediction.adapter.hooked(hooks):
            return likelihood(prediction, repeat(noisy, "pos d -> copy pos d", copy=len(positions)), scale, done)

    return batches.map(run, torch.arange(len(prediction), device=noisy.device), len(prediction))


# --------------------------------------------------------------------------------------------------- what is refused
def _check(what: What, window: int, noise: float | int, samples: int, seed: int) -> None:
    check_choice("what", what, get_args(What), {"resid_pre": "a layer's is the resid_post of the one before"})
    check_count("samples", samples)
    for name, value, least in (("window", window, 1), ("seed", seed, 0)):
        check_at_least(name, value, least, whole=True)
    check_at_least("noise", noise, 0)
    if window > 1 and what == "resid_post":
        raise ValueError(
            f"window={window} with what='resid_post': the stream after a layer holds what all before it added, so "
            "leave out window=, or put back what='mlp_out' or 'attn_out'"
        )


def _corrupted(prediction: Prediction, subject: Iterable[int] | None) -> Bool[Tensor, "pos"]:
    """Which positions are to be under noise."""
    if subject is None:
        return all_but_bos(prediction)
    corrupted = torch.zeros(len(prediction), dtype=torch.bool)
    corrupted[chosen_positions("subject", subject, len(prediction), "of the context")] = True
    return corrupted
