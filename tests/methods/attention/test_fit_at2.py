"""The fit of heads' weights: it finds the heads that matter, and is blind to the units of what it is fitted to."""

from functools import partial
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.data.prompt_sources import prompts
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.at2 import ablations, attended, correlation, fit_at2, minimised


def drawn(prompts: int = 30, samples: int = 24) -> torch.Tensor:
    return torch.randn(prompts, samples, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def equal() -> torch.Tensor:
    return torch.full((2, 3), 1 / 6, dtype=torch.float64)


def test_the_head_that_decides_gets_the_weight() -> None:
    features = drawn()
    log_odds = 5 * features[..., 1, 2] + 100
    weights = minimised(features, log_odds, equal(), steps=1000, batch=512, seed=0)
    assert float(weights.abs().sum()) == pytest.approx(1)
    assert weights.argmax() == 5 and weights[1, 2] > 2 * weights.flatten()[:5].abs().max()
    assert correlation(weights, features, log_odds).mean() > correlation(equal(), features, log_odds).mean() + 0.2


def test_units_of_the_log_odds_do_not_matter() -> None:
    features, log_odds = drawn(), drawn()[..., 0, 0] + drawn()[..., 1, 0].square()
    weights, other = (minimised(features, values, equal(), 50, 512, 0) for values in (log_odds, 3 * log_odds - 7))
    assert relative(weights, other) < 1e-6


def test_correlations_are_pearsons() -> None:
    features, log_odds = drawn(4), drawn(4)[..., 0, 0].exp()
    predicted = torch.einsum("lh,pmlh->pm", equal(), features)
    plain = [torch.corrcoef(torch.stack([one, other]))[0, 1] for one, other in zip(predicted, log_odds, strict=True)]
    assert relative(correlation(equal(), features, log_odds), torch.stack(plain)) < 1e-6
    assert not correlation(equal(), features, torch.ones(4, 24, dtype=torch.float64)).any()


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_an_ablation_is_a_run_with_masked_embeddings(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 5), 7)
    found = ablations(prediction, "zero", 3, 0.5, torch.Generator().manual_seed(1))
    there = torch.rand(3, 5 - int(prediction.begins), generator=torch.Generator().manual_seed(1)) < 0.5
    first = int(prediction.begins)
    for row, features, log_odds in zip(there, *found, strict=True):
        masked = prediction.embeddings.clone()
        masked[first:][~row] = 0
        with prediction.running():
            p = prediction.logits_from()(masked[None])[0].softmax(-1)[7]
            plain = torch.einsum("lhj,j->lh", attended(prediction)[..., first:], torch.where(row, 1.0, -1.0).double())
        assert float(log_odds) == pytest.approx(float((p / (1 - p)).log()), rel=1e-5)
        assert relative(features, plain) < 1e-6


@pytest.mark.slow
def test_the_demo_model_is_fitted_better_than_with_equal_weights() -> None:
    model = heta_lens.load_demo_model()
    given = [ask(model, prompt) for prompt in prompts("recall", split="train", limit=4)]
    fitted = fit_at2(given, samples=8, steps=200, progress=False)
    again = fit_at2(given, samples=8, steps=200, progress=False)
    assert torch.equal(fitted.weights, again.weights)
    assert fitted.fitted["correlation"] > fitted.fitted["equal"] and fitted.fitted["prompts"] == 4


def test_prompts_without_an_effect_do_not_spoil_the_others() -> None:
    """A constant has no correlation, and its gradient must not be that of a root at 0."""
    features = torch.cat([drawn(), torch.zeros(2, 24, 2, 3, dtype=torch.float64)])
    log_odds = torch.cat([5 * drawn()[..., 1, 2], torch.ones(2, 24, dtype=torch.float64)])
    weights = minimised(features, log_odds, equal(), steps=200, batch=512, seed=0)
    assert weights.isfinite().all() and weights.argmax() == 5


def test_one_token_prompts_leave_equal_weights() -> None:
    model = zoo.bridge("gpt2")
    fitted = fit_at2([predict(model, zoo.prompt(model, 1), 7)] * 3, samples=4, steps=5, progress=False)
    assert fitted.weights.isfinite().all() and float(fitted.weights.abs().sum()) == pytest.approx(1)


def test_predictions_are_made_one_by_one() -> None:
    model, made = zoo.bridge("gpt2"), []

    def each() -> Any:
        for length in (4, 5, 6):
            made.append(length)
            yield predict(model, zoo.prompt(model, length), 7)

    assert fit_at2(each(), samples=4, steps=5, progress=False).fitted["prompts"] == len(made) == 3


def one(family: str = "gpt2") -> Any:
    return predict(zoo.bridge(family), zoo.prompt(zoo.bridge(family), 4), 7)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("predictions", "options", "error", "says"),
    [
        ([], {"samples": 1}, ValueError, "samples=1"),
        ([], {"keep": 1.0}, ValueError, "keep=1.0 must be below 1"),
        ([], {"mask": "none"}, ValueError, "mask='none'"),
        ([], {}, ValueError, "cannot be fitted to 0 predictions"),
        (["no"], {}, TypeError, "fit_at2 takes predictions"),
        ([one, partial(one, "llama")], {}, ValueError, "predictions of one model"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    predictions: list[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fit_at2([each() if callable(each) else each for each in predictions], progress=False, **options)
