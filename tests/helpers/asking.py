"""Questions to models: through heta_lens, or plainly with the model's own hooks; and refusals of questions."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
import heta_lens.prediction.prediction
from helpers import oracles, zoo
from heta_lens import attribute
from heta_lens.methods.heta.probes import rademacher


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


def gpt2() -> Any:
    """A model of one's own, to change."""
    return zoo.bridge.__wrapped__("gpt2")


def token(text: str) -> int:
    (only,) = zoo.tokenizer().encode(text)
    return only


def same(one: heta_lens.Attribution, other: heta_lens.Attribution) -> bool:
    """Bit for bit."""
    return torch.equal(one.scores, other.scores) and all(
        torch.equal(part, other.parts[name]) for name, part in one.parts.items()
    )


N, TARGET = 6, 7


class Half:
    """A judge for SEA-CoT: any two texts entail each other by one half. The ids of tests show its name."""

    def __call__(self, *_: Any) -> float:
        return 0.5

    def __repr__(self) -> str:
        return "half"


HALF = Half()
QUICK: dict[str, dict[str, Any]] = {
    "heta": {"probes": 2},
    "integrated_gradients": {"steps": 4},
    "sequential_integrated_gradients": {"steps": 2},
    "discretized_integrated_gradients": {"steps": 2, "neighbours": 20},
    "faml": {"steps": 3},
    "causal_tracing": {"samples": 2, "layers": 2},
    "lime": {"samples": 40},
    "kernel_shap": {"samples": 30},
    **{name: {"source": "token", "ablate": "mask"} for name in ("context_cite", "arc_jsd", "attribot")},
    "shapiq": {"source": "token", "ablate": "mask", "samples": 30},
    "progressive_inference": {"passes": "multi", "samples": 6},
    "reagent": {"probes": 2, "max_steps": 3},
    "sea_cot": {"explanations": 40, "length": 12, "temperature": 100, "top_p": 1, "seed": 7},
}
"""Options with which a method is done soon."""


def refusal(cache: Any, target: Any = TARGET, *, call: Callable[..., Any] = attribute, **options: Any) -> str:
    """The one sentence with which heta_lens, and nothing below it, refuses."""
    with pytest.raises((ValueError, TypeError)) as refused:
        call(cache, target, **options)
    assert Path(heta_lens.__file__).parent in Path(refused.traceback[-1].path).parents
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


def missing(words: list[str], sentence: str) -> str:
    """The sentence, if it lacks one of the words: empty is good."""
    return "" if all(word in sentence for word in words) else sentence


PROBES = 3


def reference(model: Any, ids: Tensor, target: int, i: int, read: int) -> tuple[float, float]:
    """S and I of token i, with nothing but full runs of the prompt as it is: a dense Hessian, and one masked run."""
    embeddings = plain_embeddings(model, ids)

    def log_probs(whole: Tensor) -> Tensor:
        replace = [("hook_embed", lambda live, hook: whole[None].to(live))]  # noqa: ARG005
        return model.run_with_hooks(ids, fwd_hooks=replace)[0, read].log_softmax(-1)

    def objective(own: Tensor) -> Tensor:
        return log_probs(torch.cat([embeddings[:i], own, embeddings[i + 1 :]]))[target]

    block = oracles.dense_hessian(objective, embeddings[i : i + 1].clone(), functional=True)
    probes = rademacher(0, i, PROBES, embeddings.shape[1])[:, None]
    masked = embeddings.clone()
    masked[i] = 0
    with torch.no_grad():
        information = oracles.kl(log_probs(embeddings), log_probs(masked))
    return float(oracles.block_l1(block, probes).mean()), float(information)


def estimate(model: Any, ids: Tensor, **options: Any) -> Any:
    return heta_lens.estimate(cache_of(model, ids), tokens=ids, **options)


def plain(model: Any, ids: Sequence[int]) -> Tensor:
    """What comes next."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]))[0, -1].log_softmax(-1)


def plain_draw(log_probs: Tensor, draw: float, temperature: float, top_p: float) -> int:
    """Walk through the tokens, likeliest first, until the draw is used up."""
    probs = (log_probs / temperature).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    nucleus: list[int] = []
    while sum(probs[token] for token in nucleus) < top_p and len(nucleus) < len(order):
        nucleus.append(order[len(nucleus)])
    left = draw * sum(probs[token] for token in nucleus)
    for token in nucleus:
        left -= probs[token]
        if left < 0:
            return token
    return nucleus[-1]


def plain_logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids)[0].double()


def hooked_up(model: Any) -> Any:
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
    return model


def explain_by(model: Any, method: Any, target: Any = 7, n: int = 4) -> heta_lens.Attribution:
    return method(predict(model, zoo.prompt(model, n), target))
