"""The fit of heads' weights: it finds the heads that matter, and is blind to the units of what it is fitted to."""

from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from heta_lens._util.work_counting import Work
from heta_lens.data.prompt_sources import prompts
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.attention.at2 import attended
from heta_lens.methods.attention.fit_at2 import ablations, correlation, fit_at2, minimised


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
    found = ablations(prediction, "zero", 3, 0.5, torch.Generator().manual_seed(1), Work())
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


def test_the_demo_model_is_fitted_better_than_with_equal_weights() -> None:
    model = heta_lens.load_demo_model()
    given = [ask(model, prompt) for prompt in prompts("recall", split="train", limit=4)]
    fitted = fit_at2(given, samples=8, steps=200, progress=False)
    again = fit_at2(given, samples=8, steps=200, progress=False)
    assert torch.equal(fitted.weights, again.weights)
    assert fitted.fitted["correlation"] > fitted.fitted["equal"] and fitted.fitted["prompts"] == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"samples": 1}, "samples=1"),
        ({"keep": 1.0}, "keep=1.0 must be above 0"),
        ({"mask": "none"}, "mask='none'"),
        ({}, "cannot be fitted to 0 predictions"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_fitted_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit_at2([], **options)
