"""How likely the target is: read from logits on a scale, and as a function of the states of the context."""

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from heta_lens._util.target_kinds import Side, members
from heta_lens._util.work_counting import Done, Work, count
from heta_lens.model.batching import Batches

Scale: TypeAlias = Literal["log_prob", "prob", "logit", "log_odds"]


# ---------------------------------------------------------------------------------------------- from logits, on a scale
def log_softmax(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """In float64, where the device has it: what is left of a confident prediction's ``1 - p`` is lost in float32."""
    return _exact(logits).log_softmax(-1).to(logits)


def _exact(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    return logits if logits.device.type == "mps" else logits.double()


def on_scale(logits: Float[Tensor, "*batch vocab"], tokens: Side, scale: Scale) -> Float[Tensor, "*batch"]:
    """How likely a token is, or any token of a set: ``log Σ exp`` of their logits is the logit of the set."""
    if scale == "logit":
        return joint_logit(logits, tokens)
    exact = _exact(logits)  # and no log-probabilities of other tokens, which may be many
    logit = joint_logit(exact, tokens)
    if scale == "log_odds":  # exact for a certain prediction too, whose 1 - p is lost
        others = exact.index_fill(-1, torch.tensor(members(tokens), device=exact.device), -torch.inf)
        return (logit - others.logsumexp(-1)).to(logits)
    log_prob = (logit - exact.logsumexp(-1)).to(logits)
    return log_prob.exp() if scale == "prob" else log_prob


def joint_logit(logits: Float[Tensor, "*batch vocab"], tokens: Side) -> Float[Tensor, "*batch"]:
    return logits[..., tokens] if isinstance(tokens, int) else logits[..., members(tokens)].logsumexp(-1)


# ------------------------------------------------------------------------------------------ as a function of the states
@runtime_checkable
class Readable(Protocol):
    """What is needed of a `Prediction`, which uses the scales above itself."""

    @property
    def embeddings(self) -> Float[Tensor, "pos d"]: ...

    def logits_from(
        self, start: int = 0, layer: int | None = None
    ) -> Callable[[Float[Tensor, "batch pos d"]], Float[Tensor, "batch vocab"]]: ...

    def read(self, logits: Float[Tensor, "*batch vocab"], scale: Scale) -> Float[Tensor, "*batch"]: ...


@torch.no_grad()
def likelihood(
    prediction: Readable,
    states: Float[Tensor, "copy pos d"],
    scale: Scale,
    done: Done,
    start: int = 0,
    layer: int | None = None,
) -> Float[Tensor, "copy"]:
    """With other embeddings (or states that enter a layer) from a position on, one run for each copy of the context."""
    values = prediction.read(prediction.logits_from(start, layer)(states), scale)
    done(len(states))
    return values


def gradients(
    prediction: Readable,
    states: Float[Tensor, "copy pos d"],
    scale: Scale,
    work: Work,
    layer: int | None = None,
    start: int = 0,
) -> Float[Tensor, "copy pos d"]:
    """The derivative of each copy's likelihood by what enters a layer (or by embeddings) from a position on."""
    return values_and_gradients(prediction, states, scale, work, layer, start)[1]


def values_and_gradients(
    prediction: Readable,
    states: Float[Tensor, "copy pos d"],
    scale: Scale,
    work: Work,
    layer: int | None = None,
    start: int = 0,
) -> tuple[Float[Tensor, "copy"], Float[Tensor, "copy pos d"]]:
    """Each copy's likelihood, and its derivative."""
    leaf = states.detach().clone().requires_grad_()
    values = prediction.read(prediction.logits_from(start, layer)(leaf), scale)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    count("backwards", len(states))
    work.add("forwards", len(states))
    work.add("backwards", len(states))
    return values.detach(), gradient


def ablated(
    prediction: Readable,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"],
    scale: Scale,
    batches: Batches,
    done: Done,
) -> Float[Tensor, "copy"]:
    """How likely the target is in copies of the context in which only the tokens ``present`` are not masked."""
    read = partial(likelihood, prediction, scale=scale, done=done)
    return with_others_masked(prediction, present, mask, read, batches)


def with_others_masked(
    prediction: Readable,
    present: Bool[Tensor, "copy pos"],
    mask: Float[Tensor, "d"],
    read: Callable[[Float[Tensor, "some pos d"]], Float[Tensor, "some *read"]],
    batches: Batches,
) -> Float[Tensor, "copy *read"]:
    """What ``read`` gives for copies of the context in which only the tokens ``present`` are not masked."""
    embeddings = prediction.embeddings

    def masked(rows: Bool[Tensor, "some pos"]) -> Float[Tensor, "some *read"]:
        return read(torch.where(rearrange(rows, "copy pos -> copy pos 1"), embeddings, mask))

    return batches.map(masked, present.to(embeddings.device), len(embeddings))
