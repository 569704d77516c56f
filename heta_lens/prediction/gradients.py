"""Likelihoods of changed copies of a context, gradients of the likelihoods, and a check of gradients."""

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.work import count, counting
from heta_lens.model.batching import Batches, out_of_memory
from heta_lens.model.hooks import Hook
from heta_lens.prediction.cache import CleanRun, Rules, no_rules
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import Rerun
from heta_lens.prediction.target import Scale

logger = logging.getLogger("heta_lens")

Measure: TypeAlias = Callable[[Prediction, Float[Tensor, "vocab"]], Float[Tensor, ""]]
"""What is differentiated, of the clean logits of a prediction."""


@torch.no_grad()
def likelihood(
    prediction: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale, start: int = 0
) -> Float[Tensor, "copy"]:
    """Compute the likelihood of the target in every copy, with given embeddings from ``start`` on."""
    return prediction.read(prediction.rerun(start).logits(states), scale)


def values_and_gradients(
    prediction: Prediction, states: Float[Tensor, "copy pos d"], scale: Scale, start: int = 0
) -> tuple[Float[Tensor, "copy"], Float[Tensor, "copy pos d"]]:
    """Compute the likelihoods of the copies and the derivatives by the embeddings."""
    leaf = states.detach().clone().requires_grad_()
    values = prediction.read(prediction.rerun(start).logits(leaf), scale)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    count("backwards", len(states))
    return values.detach(), gradient


def values_and_gradients_of_each(
    predictions: Sequence[Prediction], states: Float[Tensor, "copy pos d"], scale: Scale
) -> tuple[Float[Tensor, "copy target"], Float[Tensor, "copy target pos d"]]:
    """Compute the likelihood of every target of a prompt in the copies, and the derivatives by the embeddings.

    The forward runs serve all targets; ``states`` are of the longest context, which is the last.
    """
    leaf, longest = states.detach().clone().requires_grad_(), predictions[-1]
    logits = longest.rerun(read=[len(prediction) - 1 for prediction in predictions]).logits(leaf)
    rows = zip(predictions, logits.unbind(1), strict=True)
    values = torch.stack([prediction.read(row, scale) for prediction, row in rows], 1)
    multiply = partial(vector_jacobian_products, values.sum(0), leaf)
    batches = longest.batches("auto", len(states) * len(longest), products=True)
    gradients = batches.map(multiply, torch.eye(len(predictions)).to(leaf), len(states) * len(longest))
    count("backwards", len(states) * len(predictions))
    return values.detach(), rearrange(gradients, "target copy pos d -> copy target pos d")


def vector_jacobian_products(outputs: Tensor, inputs: Tensor, directions: Tensor) -> Tensor:
    """Multiply directions with the transposed Jacobian, in a single backward pass if the model's layers allow it."""
    if not outputs.requires_grad:  # the outputs are constant
        return inputs.new_zeros(len(directions), *inputs.shape)
    multiplied = partial(torch.autograd.grad, outputs, inputs, retain_graph=True, materialize_grads=True)
    if len(directions) > 1:
        try:
            return multiplied(directions, is_grads_batched=True)[0].expand(len(directions), *inputs.shape)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            logger.info("one backward pass for every direction, since PyTorch says: %s", str(error).partition("\n")[0])
    return torch.stack([multiplied(direction)[0] for direction in directions])


class CleanGradients(NamedTuple):
    """Values of several predictions of a prompt, their gradients by its states, and the hooks of the run."""

    values: Float[Tensor, "target"]
    gradients: Float[Tensor, "target pos d"]
    hooks: Sequence[tuple[str, Hook]]


def clean_gradients(
    predictions: Sequence[Prediction],
    measure: Measure,
    rules: Rules = no_rules,
    *,
    layer: int | None = None,
    checkpoint: bool | None = None,
) -> CleanGradients:
    """Differentiate a measure of each prediction by the embeddings (or the input of a ``layer``), in one clean run.

    The predictions are of one prompt, shorter contexts first. The run is the check's, if it kept its graph under the
    same rules. With ``checkpoint`` (for None, if the whole graph would not fit), one block's graph is held at a time.
    """
    longest, run = predictions[-1], None if layer else _checks_run(predictions, rules)
    # A graph that is held already takes memory, and is used first.
    by_block, top = run is None and longest.holds_one_block(checkpoint), longest.adapter.first_read
    if run is None:
        longest.check_graph_fits(first=layer or 0, checkpoint=by_block)
    below = block_reruns(longest, range(layer or 0, top + 1))[:-1] if by_block else []
    run = run or _clean_run(predictions, rules, top if below else layer)
    values = torch.stack([measure(prediction, run.logits.pop(len(prediction))) for prediction in predictions])
    multiply = partial(vector_jacobian_products, values, run.states)
    batches = longest.batches("auto", products=True, checkpoint=by_block)
    gradients = batches.map(multiply, torch.eye(len(values)).to(values), len(longest))[:, : len(longest)]
    *_, gradients = gradients, *pulled_down(below, gradients, batches, run.hooks)
    count("backwards", len(predictions))
    return CleanGradients(values.detach(), gradients, run.hooks)


def block_reruns(prediction: Prediction, layers: Sequence[int]) -> list[Rerun]:
    """Return the prediction as functions of what enters these layers, whose clean states are noted in one run."""
    prediction.prompt.streams([layer for layer in layers if layer])
    count("forwards", int(len(layers) > 1))  # for the blocks, which run once more with their graphs
    return [prediction.rerun(layer=layer or None) for layer in layers]


def pulled_down(
    reruns: Sequence[Rerun],
    gradients: Float[Tensor, "target pos d"],
    batches: Batches,
    hooks: Sequence[tuple[str, Hook]] = (),
) -> Iterator[Float[Tensor, "target pos d"]]:
    """Pass gradients by what leaves the last of some blocks down to what enters each, the last block first.

    ``reruns`` are from the states that enter every block. The graph of one block is held at a time.
    """
    for rerun in reversed(reruns):
        leaf = rerun.states().clone().requires_grad_()
        with rerun.prompt.adapter.hooked(passed(hooks, [rerun.layer or 0])):
            left = rerun.through_block(leaf)
        gradients = batches.map(partial(vector_jacobian_products, left, leaf), gradients, len(leaf))
        yield gradients


def passed(hooks: Sequence[tuple[str, Hook]], layers: Sequence[int]) -> list[tuple[str, Hook]]:
    """Return the hooks that a run of some blocks passes: those of the blocks, and those of no block."""
    return [hook for hook in hooks if not hook[0].startswith("blocks.") or int(hook[0].split(".")[1]) in layers]


def _checks_run(predictions: Sequence[Prediction], rules: Rules) -> CleanRun | None:
    """Return the check's run, if it kept these predictions' logits under these rules."""
    prompt, lengths = predictions[-1].prompt, [*map(len, predictions)]
    run = prompt.clean_run
    if run is None or run.rules != rules or not run.logits.keys() >= {*lengths}:
        return None
    if len(run.logits) == len(lengths):
        prompt.clean_run = None  # whose graph is not needed again
    count("forwards", prompt.checks["cache"].pop("forwards", 0))  # that the check took
    return run


def _clean_run(predictions: Sequence[Prediction], rules: Rules, layer: int | None) -> CleanRun:
    """Run the longest context with a graph, from the embeddings or what enters a layer."""
    longest, lengths = predictions[-1], [*map(len, predictions)]
    hooks, leaf = rules(longest.adapter), longest.states(layer).clone().requires_grad_()
    with longest.hooked(passed(hooks, range(layer or 0, longest.adapter.layers))):
        logits = longest.rerun(layer=layer, read=[length - 1 for length in lengths]).logits(leaf[None])[0]
    return CleanRun(rules, hooks, leaf, dict(zip(lengths, logits, strict=True)))


# ----------------------------------------------------------------------------------------------------- gradient check
# Kernels of quantised layers may drop gradients without an error, so a quantised model's gradient is compared with
# finite differences of the logits.
DIRECTIONS = 8
STEPS = (0.02, 0.04, 0.08, 0.16)  # of the embeddings' size: small ones drown in the rounding of activations
LONGEST = 64  # moved positions
WRONG, DOUBTS = 0.3, 3  # larger relative errors, in multiples of the gap between two step sizes, are no rounding
WAY_OUT = (
    "use a method without gradients (variant='kl_only', leave_one_out, kernel_shap …), or a quantisation whose "
    "gradients are right, such as 8 bits of bitsandbytes or torchao's Int8WeightOnlyConfig"
)

_passed: WeakSet[Any] = WeakSet()  # models that passed the check


def check_gradients(prediction: Prediction) -> None:
    """Refuse a quantised model with a wrong gradient; a model is checked once."""
    adapter = prediction.adapter
    if not adapter.quantised or prediction.user_hooks or adapter.model in _passed:
        return
    with counting(Counter()) as counts, prediction.running(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # kernels without gradients warn
        error = gradient_error(prediction)
    if error is not None:
        raise ValueError(
            f"the gradients of this model's quantised layers ({adapter.quantised} …) are not how its logits change "
            f"(off by {error:.0%}): {WAY_OUT}"
        )
    if not adapter.reads:  # an activation says nothing of the blocks above it
        _passed.add(adapter.model)
    prediction.prompt.checks["gradients"] = counts


def margin_of(prediction: Prediction, rerun: Rerun) -> Callable[[Float[Tensor, "copy pos d"]], Float[Tensor, "copy"]]:
    """Return the gap between the two largest logits as a function of states: the slope of a likelihood may vanish."""
    first, *second = prediction.logits.topk(min(2, len(prediction.logits))).indices.tolist()  # one, of an activation

    def margin(states: Float[Tensor, "copy pos d"]) -> Float[Tensor, "copy"]:
        logits = rerun.logits(states)
        return logits[:, first] - logits[:, second].sum(1)

    return margin


def gradient_error(prediction: Prediction) -> float | None:
    """Return the relative error of the gradient; None if within the error of finite differences."""
    start = max(0, len(prediction) - LONGEST)
    states, margin = prediction.embeddings[start:], margin_of(prediction, prediction.rerun(start))

    @torch.no_grad()
    def rises(steps: Float[Tensor, "direction pos d"]) -> Float[Tensor, "direction"]:
        """Return half the margin's rise between the ends of a step."""
        ends = rearrange(torch.stack([steps, -steps]) + states, "side direction pos d -> (side direction) pos d")
        after, before = rearrange(margin(ends), "(side direction) -> side direction", side=2)
        return (after - before) / 2

    signs = torch.randint(0, 2, (DIRECTIONS, *states.shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
    directions = signs.to(states) * states.square().mean().sqrt()
    leaf = states.clone().requires_grad_()
    value = margin(leaf[None])[0]
    count("backwards", 1)
    gradient = torch.autograd.grad(value, leaf)[0] if value.requires_grad else torch.zeros_like(states)
    slopes = einsum(gradient, directions, "pos d, direction pos d -> direction")
    batches = prediction.batches("auto", len(states))
    measured = [batches.map(rises, directions * size, len(states)) / size for size in STEPS]
    near, far = min(pairwise(measured), key=lambda pair: float((pair[0] - pair[1]).norm()))
    scale = torch.maximum(near.norm(), slopes.norm())
    error, doubt = (near - slopes).norm() / scale, (near - far).norm() / scale
    return float(error) if error > max(WRONG, DOUBTS * doubt) else None
