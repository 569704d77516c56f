"""Gradients and sums along paths: by plain runs of a model, or of a function given by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.asking import predict
from helpers.heta import Toy
from heta_lens.methods.base import Method

N, TARGET, OTHER = 7, 7, 20


def plain(model: Any, ids: Tensor, target: int = TARGET, scale: str = "log_prob") -> Callable[[Tensor], Tensor]:
    """g as a function of the prompt's embeddings: one full run."""

    def g(embeddings: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: embeddings[None].to(live.dtype))]  # noqa: ARG005
        return on(model.run_with_hooks(ids, fwd_hooks=replace)[0, -1], target, scale)

    return g


def on(logits: Tensor, target: int, scale: str) -> Tensor:
    p = logits.softmax(-1)[target]
    return {"log_prob": p.log(), "prob": p, "logit": logits[target], "log_odds": p.log() - (1 - p).log()}[scale]


def slope(g: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.detach().clone().requires_grad_()
    return torch.autograd.grad(g(leaf), leaf)[0]


def value(g: Callable[[Tensor], Tensor], at: Tensor) -> float:
    return float(g(at).detach())


def along(g: Callable[[Tensor], Tensor], start: Tensor, stop: Tensor, nodes: Sequence[Any]) -> Tensor:
    """Integrated gradients, by definition: the mean gradient at some (place, weight) of a straight line."""
    mean = sum(weight * slope(g, start + place * (stop - start)) for place, weight in nodes)
    return (mean * (stop - start)).sum(-1)


def with_row(embeddings: Tensor, place: int, row: Tensor) -> Tensor:
    return torch.cat([embeddings[:place], row[None], embeddings[place + 1 :]])


def every(g: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same of a batch, as captum asks for it."""
    return lambda batch: torch.stack([g(embeddings) for embeddings in batch])


def scores(method: Method, model: Any, ids: Tensor, target: Any = TARGET) -> Tensor:
    return method(predict(model, ids, target)).scores


def explain(method: Method, toy: Toy) -> tuple[list[float], dict[str, Any]]:
    found = method.explain(toy)
    return found.scores.tolist(), dict(found.diagnostics)
