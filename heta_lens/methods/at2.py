"""AT2 (Cohen-Wang 2025): weighted attention of all heads, with weights fitted to the effects of ablations."""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.options import check_at_least, check_count
from heta_lens._util.storage import check_record, load, save
from heta_lens._util.work import Work, working
from heta_lens.methods.base import Scores, WithBos
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.loading import DEMO
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.coalitions import each_token, with_only, worths
from heta_lens.prediction.prediction import Prediction

KIND, VERSION = "heta_lens head weights", 1
SAMPLE, ALIKE = 16, 0.02  # tokens whose embeddings identify a model, and a relative difference beyond rounding
FITTED = DEMO / "head_weights.safetensors"
RATE, CLIP, BATCH = 1e-3, 1.0, 512  # of the optimiser; the longest gradient; prompts in each step
TINY = 1e-8  # the least standard deviation
FOLDS = 5  # one of which is held out
NOTE = "heads have equal weights, which were not fitted to this model: heta-lens fit-at2 writes a file for weights="


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weights of attention heads, which belong to a model and can be saved, and facts about the fit."""

    weights: Float[Tensor, "layer head"]
    model: str
    lengths: Float[Tensor, "token"]  # of some embeddings
    fitted: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, adapter: ModelAdapter, weights: Float[Tensor, "layer head"], **fitted: Any) -> "HeadWeights":
        name = str(getattr(adapter.model.cfg, "model_name", type(adapter.model).__name__))
        return cls(weights, name, _lengths(adapter), fitted)

    def save(self, path: str | PathLike[str]) -> None:
        save(path, KIND, VERSION, {**vars(self), "fitted": dict(self.fitted)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "HeadWeights":
        def checked(stored: Mapping[str, Any]) -> "HeadWeights":
            check_record(cls, stored)
            return cls(**stored)

        return load(Path(path).expanduser(), KIND, VERSION, checked)

    def belongs_to(self, adapter: ModelAdapter) -> bool:
        """Compare shape and embeddings with a model, which may be in another class or precision."""
        same = tuple(self.weights.shape) == (adapter.layers, int(adapter.model.cfg.n_heads))
        lengths = _lengths(adapter)
        return same and lengths.shape == self.lengths.shape and bool(((lengths / self.lengths - 1).abs() < ALIKE).all())


def _lengths(adapter: ModelAdapter) -> Float[Tensor, "token"]:
    """Return lengths of the first tokens' embeddings, which hardly depend on the model's class and precision."""
    some = range(min(SAMPLE, adapter.vocabulary))
    return adapter.embedding_table(some).double().norm(dim=-1).clamp(min=1e-9).cpu()


def equal_weights(adapter: ModelAdapter) -> Float[Tensor, "layer head"]:
    layers, heads = adapter.layers, int(adapter.model.cfg.n_heads)
    return torch.full((layers, heads), 1 / (layers * heads), dtype=torch.float64)


@dataclass(frozen=True, eq=False, kw_only=True)
class At2(WithBos):
    """AT2 (Cohen-Wang 2025): weighted attention of all heads, with weights fitted to the effects of ablations.

    ``a_j = Σ_lh θ_lh A^lh_Nj``: above 0 speaks for what is predicted, the same for every target.

    A are the attention patterns, N the position that predicts. The weights θ of heads are fitted once per model, so
    that the sum of the scores that an ablation leaves correlates with how likely the answer then is.

    - ``weights``: a file that ``heta-lens fit-at2`` wrote, or a tensor ``[layer, head]``; None takes those that ship
      with the demo model, and on other models equal weights, which ``diagnostics["note"]`` says
    - ``keep_bos``: give a beginning-of-text token a score of 0
    """

    weights: str | PathLike[str] | Tensor | None = None

    name: ClassVar = "at2"
    paper: ClassVar[str] = "Cohen-Wang, Chuang & Madry, Learning to attribute with attention, 2025, arXiv:2504.13752"
    family: ClassVar = "attention"
    cost: ClassVar = "nothing, with attention in the cache; else 2 F; and once per model, the fit"
    target_agnostic: ClassVar = True
    adapted: ClassVar = "fitted to ablations that mask embeddings, of the first token of an answer"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        self._weights(prediction)

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=prediction.pattern_runs(prediction.layers))

    def explain(self, prediction: Prediction) -> Scores:
        weights, facts = self._weights(prediction)
        scores = einsum(weights.detach().to(prediction.embeddings), attended(prediction), "l head, l head key -> key")
        if self.keep_bos and prediction.begins:
            scores[0] = 0
        return Scores(scores, facts)

    def _weights(self, prediction: Prediction) -> tuple[Float[Tensor, "layer head"], dict[str, str]]:
        """Return the weights, and a note if the weights were not fitted."""
        equal = equal_weights(prediction.adapter)
        if isinstance(self.weights, Tensor):
            if self.weights.shape != equal.shape:
                raise ValueError(
                    f"weights have the shape {tuple(self.weights.shape)}, not this model's {tuple(equal.shape)}"
                )
            return self.weights, {}
        kept = HeadWeights.load(FITTED if self.weights is None else self.weights)
        if kept.belongs_to(prediction.adapter):
            return kept.weights, {}
        if self.weights is not None:
            raise ValueError(
                f"weights={str(self.weights)!r} were fitted to another model, {kept.model!r}: fit them anew"
            )
        return equal, {"note": NOTE}


def attended(prediction: Prediction) -> Float[Tensor, "layer head key"]:
    return torch.stack([pattern[:, -1] for pattern in prediction.patterns])


def fit_at2(
    predictions: Iterable[Prediction],
    *,
    samples: int = 32,
    steps: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> HeadWeights:
    """Choose weights of heads so that weighted attention correlates with the target's log-odds after ablations.

    The loss is minus the correlation over the ablations of a prompt, averaged over prompts. ``fitted`` holds the
    ``correlation`` on these prompts, ``held_out`` on every fifth prompt, of weights fitted to the other prompts, and
    ``equal``, of equal weights.

    Args:
        predictions: a few hundred predictions of one model, each used once, so that a generator is enough.
        samples: the number of ablations of each prompt, one forward each.
        steps: the number of steps of the optimiser.
        seed: the seed of the ablations and the batches.
        progress: show a progress bar; None shows it on a terminal or in a notebook.
    """
    check_at_least("samples", samples, 2, whole=True)
    check_count("steps", steps)
    generator, adapter, measured = torch.Generator().manual_seed(seed), None, list[tuple[Tensor, Tensor]]()
    total = len(predictions) if isinstance(predictions, Sized) else 0
    with working({"predictions": total}, progress) as work:
        for prediction in predictions:  # which is not kept
            adapter = adapter or prediction.adapter
            if prediction.model is not adapter.model:
                raise ValueError("fit_at2 takes predictions of one model: weights of heads belong to it")
            measured.append(ablations(prediction, samples, generator))
            work.advance("predictions", 1)
    if adapter is None or len(measured) < 2:
        raise ValueError(f"weights are fitted to two predictions or more, not to {len(measured)}: give more (--limit)")
    features, log_odds = (torch.stack(values) for values in zip(*measured, strict=True))
    fit, start = partial(minimised, steps=steps, seed=seed), equal_weights(adapter)
    held = torch.arange(len(features)) % FOLDS == min(FOLDS, len(features)) - 1
    weights, apart = fit(features, log_odds, start), fit(features[~held], log_odds[~held], start)
    facts = {
        "correlation": float(correlation(weights, features, log_odds).mean()),
        "held_out": float(correlation(apart, features[held], log_odds[held]).mean()),
        "equal": float(correlation(start, features, log_odds).mean()),
        "prompts": len(features),
        "samples": samples,
        "seed": seed,
    }
    return HeadWeights.of(adapter, weights, **facts)


@one_at_a_time("prediction")
def ablations(
    prediction: Prediction, samples: int, generator: torch.Generator
) -> tuple[Float[Tensor, "ablation layer head"], Float[Tensor, "ablation"]]:
    """Mask half of the tokens at random: attention to the others less attention to masked ones, and the log-odds.

    A token that begins the text is never masked.
    """
    tokens = each_token(prediction, keep_bos=True)
    there = torch.rand(samples, len(tokens), generator=generator) < 0.5
    with prediction.running():
        log_odds = worths(tokens, there.numpy(), with_only(prediction, "zero", "log_odds", "auto"))
        attention = attended(prediction).double().cpu()
    signs = torch.where(there, 1.0, -1.0).double()
    attention = attention[..., torch.from_numpy(tokens).double().argmax(1)]
    features = einsum(signs, attention, "ablation token, layer head token -> ablation layer head")
    return features, torch.from_numpy(log_odds)


def correlation(
    weights: Float[Tensor, "layer head"],
    features: Float[Tensor, "prompt ablation layer head"],
    log_odds: Float[Tensor, "prompt ablation"],
) -> Float[Tensor, "prompt"]:
    """Correlate weighted attention with the log-odds, over the ablations of a prompt; 0 for constant values."""
    predicted = einsum(weights, features, "layer head, prompt ablation layer head -> prompt ablation")
    x, y = (values - values.mean(1, keepdim=True) for values in (predicted, log_odds))
    variance_x, variance_y = (values.square().mean(1).clamp(min=TINY**2) for values in (x, y))  # roots have slopes
    return (x * y).mean(1) / (variance_x * variance_y).sqrt()


def minimised(
    features: Float[Tensor, "prompt ablation layer head"],
    log_odds: Float[Tensor, "prompt ablation"],
    start: Float[Tensor, "layer head"],
    steps: int,
    seed: int,
) -> Float[Tensor, "layer head"]:
    """Minimise by Adam, with a rate that falls to 0 along a cosine; return weights whose absolute values sum to 1."""
    weights, generator = start.clone().requires_grad_(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam([weights], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        drawn = torch.randperm(len(features), generator=generator)[:BATCH]
        optimiser.zero_grad()
        (-correlation(weights, features[drawn], log_odds[drawn]).mean()).backward()
        torch.nn.utils.clip_grad_norm_([weights], CLIP)
        optimiser.step()
        schedule.step()
    return (weights / weights.abs().sum()).detach()
