"""Asking models questions in tests: through heta_lens, and plainly, with nothing but the model's own hooks."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
import heta_lens.prediction.prediction


@contextmanager
def doubts_allowed() -> Iterator[None]:
    """On models this small one part often drowns the other, and a short search finds nothing, which is warned of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*tokens that suffice", UserWarning)
        warnings.filterwarnings("ignore", ".*(vary much with so few|fitted weights are off by)", UserWarning)
        yield


def cache_of(model: Any, ids: Tensor) -> Any:
    return model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]


def predict(model: Any, ids: Tensor, target: Any = None, **where: Any) -> heta_lens.Prediction:
    return heta_lens.Prediction.from_cache(cache_of(model, ids), target, tokens=ids, **where)


def explain(model: Any, ids: Tensor, target: Any = None, **options: Any) -> heta_lens.Attribution:
    with doubts_allowed():
        return heta_lens.attribute(cache_of(model, ids), target, tokens=ids, **options)


@contextmanager
def hooked(model: Any, *hooks: tuple[str, Any]) -> Iterator[None]:
    """Somebody's hooks, for a while."""
    for name, function in hooks:
        model.add_hook(name, function)
    try:
        yield
    finally:
        model.reset_hooks()


def plain_embeddings(model: Any, ids: Tensor) -> Tensor:
    return model.run_with_cache(ids, names_filter=["hook_embed"])[1]["hook_embed"][0].clone()


def plain_log_probs(model: Any, ids: Tensor) -> Callable[[Tensor], Tensor]:
    """Next-token log-probabilities as a function of the prompt's embeddings: one full run, nothing shared."""

    def log_probs(embeddings: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: embeddings[None].to(live.dtype))]  # noqa: ARG005
        return model.run_with_hooks(ids, fwd_hooks=replace)[0, -1].log_softmax(-1)

    return log_probs


def chunks(positions: Sequence[int], size: int) -> list[list[int]]:
    return [list(positions[start : start + size]) for start in range(0, len(positions), size)]


def start_together(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let every ``size`` neighbours share the start of their runs."""
    monkeypatch.setattr(heta_lens.prediction.prediction, "shared_starts", lambda positions, *_: chunks(positions, size))


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest expected entry."""
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


def signs(seed: int, probes: int, n: int, d: int) -> Tensor:
    """The probes of every token, ``[probe, pos, d]``."""
    from heta_lens.methods.heta.probes import rademacher

    return torch.stack([rademacher(seed, position, probes, d) for position in range(n)], dim=1)


def busy(model: Any) -> Any:
    """The model in the middle of somebody's work: a hook on it, some parameters frozen."""
    for k, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(k % 3 != 0)
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
    return model
