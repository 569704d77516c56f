"""Causal tracing (Meng 2022): after which layer, and at which token, what a clean run had there brings the target back.

The baseline of this name makes one score a token of it; here the table itself can be looked at, noise may fall on a
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

from heta_lens.asked import Asked
from heta_lens.baselines.causal_tracing import drowned, spoken
from heta_lens.batches import Batches
from heta_lens.cached import Tokens
from heta_lens.causal.grid import Grid
from heta_lens.interventions import check_reading, picked
from heta_lens.lens import Lens, added_names
from heta_lens.likelihood import likelihood
from heta_lens.options import Batch, check_at_least, check_choice, check_count, chosen_positions
from heta_lens.prediction import Prediction
from heta_lens.progress import Done, working
from heta_lens.scales import Scale
from heta_lens.text import quoted
from heta_lens.turns import one_at_a_time

What: TypeAlias = Literal["resid_post", "mlp_out", "attn_out"]
States: TypeAlias = Mapping[str, Float[Tensor, "pos d"]]  # by the hook where they were seen


@one_at_a_time("cache")
def trace(
    cache: Any,
    target: Asked = None,
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
        tokens, position: as `attribute` is given them.
        subject: the positions whose embeddings are under noise; by default all but a token that only says that the
            text begins.
        what: is put back: the residual stream after the layer (``resid_post``), or what the layer's MLP or attention
            adds to it (``mlp_out``, ``attn_out``).
        window: of what is added, of how many layers it is put back at once, around the layer (of an even number, one
            more is below it than above); of fewer at both ends. The authors take 10.
        noise: in standard deviations of the context's embeddings.
        samples, seed: how often noise is drawn, and where from.
        scale: what the grid holds, the target's ``prob``, ``log_prob``, ``logit`` or ``log_odds``.
        batch: how many copies of the context run at once.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    check_reading(scale, batch)
    _check(what, window, noise, samples, seed)
    lens = Lens.of(cache)
    names = _names(lens, what)
    lens.check_points(names)
    asked = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    spoilt, cost = _spoilt(asked, subject), samples * (lens.layers * len(asked) + 1) + 2
    with asked.running(), working({"forwards": cost}, progress) as work, torch.no_grad():
        done = partial(work.add, "forwards")
        seen = _seen(asked, names, done)
        clean = likelihood(asked, asked.embeddings[None], scale, done)
        draws = [drowned(asked, spoilt, noise, index(seed), sample) for sample in range(samples)]
        low = torch.cat([likelihood(asked, noisy[None], scale, done) for noisy in draws]).mean(0)
        restored = partial(_restored, asked, asked.prompt.batches(batch, len(asked)), scale, done)
        rows = [[restored(noisy, states) for noisy in draws] for states in _windows(seen, window)]
        values = torch.stack([torch.stack(row).mean(0) for row in rows])
    for layer, row in enumerate(values):
        asked.check_finite(f"the target's likelihood with {what} of layer {layer} put back", row)
    together = min(window, lens.layers)
    put_back = f"{what} of {together} layers" if together > 1 else what
    title = f"causal tracing, {put_back}: {quoted(asked.target_text)}"
    return Grid(title, values.cpu(), asked.written, float(clean), float(low), work.done["forwards"])


def _names(lens: Lens, what: What) -> list[str]:
    """Where in each layer it is seen, and put back."""
    layers = range(lens.layers)
    if what == "resid_post":
        return [lens.stream_name(layer + 1) for layer in layers]
    return [added_names(layer)[what == "mlp_out"] for layer in layers]


def _seen(asked: Prediction, names: Sequence[str], done: Done) -> States:
    """What is there in the clean run."""

    def pick(live: Float[Tensor, "1 longer d"]) -> Float[Tensor, "pos d"]:
        return live[0, : len(asked)].clone()

    seen = picked(asked, asked.embeddings[None], 0, dict.fromkeys(names, pick))
    done(1)
    return {name: seen[name] for name in names}


def _windows(seen: States, window: int) -> list[States]:
    """For each layer what is put back together: of so many layers around it, as many as there are."""
    each = list(seen.items())
    starts = [layer - window // 2 for layer in range(len(each))]
    return [dict(each[max(0, start) : start + window]) for start in starts]


def _restored(
    asked: Prediction, batches: Batches, scale: Scale, done: Done, noisy: Float[Tensor, "pos d"], states: States
) -> Float[Tensor, "pos"]:
    """How likely the target is under noise, for each position at which these states are put back."""

    def run(positions: Int[Tensor, "copy"]) -> Float[Tensor, "copy"]:
        hooks = [(name, partial(_put_rows, clean, positions)) for name, clean in states.items()]
        with asked.lens.hooked(hooks):
            return likelihood(asked, repeat(noisy, "pos d -> copy pos d", copy=len(positions)), scale, done)

    return batches.map(run, torch.arange(len(asked), device=noisy.device), len(asked))


def _put_rows(
    states: Float[Tensor, "pos d"], positions: Int[Tensor, "copy"], live: Float[Tensor, "copy longer d"]
) -> Float[Tensor, "copy longer d"]:
    """In each copy, one position's state."""
    found = live.clone()
    found[torch.arange(len(positions), device=live.device), positions] = states[positions].to(live)
    return found


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


def _spoilt(asked: Prediction, subject: Iterable[int] | None) -> Bool[Tensor, "pos"]:
    """Which positions are to be under noise."""
    if subject is None:
        return spoken(asked)
    spoilt = torch.zeros(len(asked), dtype=torch.bool)
    spoilt[chosen_positions("subject", subject, len(asked), "of the context")] = True
    return spoilt
