"""AT2: weighted attention, files of weights, and the fit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.data.suites import prompts
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.methods.at2 import FITTED, At2, HeadWeights, ablations, attended, correlation, fit_at2, minimised
from heta_lens.model.adapter import ModelAdapter

N = 6
BUILD = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))


@BUILD
def test_equal_weights_give_the_mean_attention(build: Any) -> None:
    found = At2(keep_bos=False)(predict(build(), zoo.prompt(build(), N), 7))
    cache = build().run_with_cache(zoo.prompt(build(), N))[1]
    mean = torch.stack([cache[f"blocks.{layer}.attn.hook_pattern"][0, :, -1] for layer in (0, 1)]).mean((0, 1))
    assert relative(found.scores, mean) < 1e-6
    assert float(found.scores.sum()) == pytest.approx(1, rel=1e-6)
    assert "not fitted to this model" in found.diagnostics["note"]


@BUILD
def test_one_weight_gives_one_head(build: Any) -> None:
    prediction = predict(build(), zoo.prompt(build(), N), 7)
    one = torch.zeros(2, 4, dtype=torch.float64)
    one[1, 2] = 1
    found = At2(weights=one, keep_bos=False)(prediction)
    with prediction.running():
        assert relative(found.scores, attended(prediction)[1, 2]) < 1e-12
    assert relative(At2(weights=-2 * one, keep_bos=False)(prediction).scores, -2 * found.scores) < 1e-12
    assert "not fitted" not in found.diagnostics["note"]


def test_a_file_is_read_and_one_of_another_model_refused(tmp_path: Path) -> None:
    model, file = zoo.bridge("llama"), tmp_path / "w.safetensors"
    prediction = predict(model, zoo.prompt(model, N), 7)
    weights = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    HeadWeights.of(prediction.adapter, weights).save(file)
    assert torch.equal(At2(weights=str(file))(prediction).scores, At2(weights=weights)(prediction).scores)
    found = At2(weights=file)(prediction)
    found.save(tmp_path / "found")
    assert heta_lens.Attribution.load(tmp_path / "found").options["weights"] == str(file)
    other = zoo.bridge("llama", n_layers=3)
    with pytest.raises(ValueError, match="were fitted to another model"):
        At2(weights=file)(predict(other, zoo.prompt(other, N), 7))
    for wrong in (weights, weights[:1, :1]):
        with pytest.raises(ValueError, match=r"weights have the shape .*, not this model's \(3, 4\)"):
            At2(weights=wrong)(predict(other, zoo.prompt(other, N), 7))


@pytest.mark.parametrize("kind", ["hooked", "bridge"])
def test_those_of_the_demo_model_ship_with_it(kind: Any) -> None:
    if kind == "hooked" and not zoo.HAS_HOOKED:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    model = heta_lens.load_demo_model(kind)
    adapter = ModelAdapter.of(model.run_with_cache(model.to_tokens("The key was in the box."))[1])
    assert HeadWeights.load(FITTED).belongs_to(adapter)
    assert float(HeadWeights.load(FITTED).weights.abs().sum()) == pytest.approx(1)
    assert HeadWeights.load(FITTED).fitted["held_out"] > HeadWeights.load(FITTED).fitted["equal"] > 0


def drawn(prompts: int = 30, samples: int = 24) -> torch.Tensor:
    return torch.randn(prompts, samples, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def equal() -> torch.Tensor:
    return torch.full((2, 3), 1 / 6, dtype=torch.float64)


def test_the_head_that_decides_gets_the_weight() -> None:
    features = drawn()
    log_odds = 5 * features[..., 1, 2] + 100
    weights = minimised(features, log_odds, equal(), steps=1000, seed=0)
    assert float(weights.abs().sum()) == pytest.approx(1)
    assert weights.argmax() == 5 and weights[1, 2] > 2 * weights.flatten()[:5].abs().max()
    assert correlation(weights, features, log_odds).mean() > correlation(equal(), features, log_odds).mean() + 0.2


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_an_ablation_is_a_run_with_masked_embeddings(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 5), 7)
    found = ablations(prediction, 3, torch.Generator().manual_seed(1))
    there = torch.rand(3, 5 - int(prediction.begins), generator=torch.Generator().manual_seed(1)) < 0.5
    first = int(prediction.begins)
    for row, features, log_odds in zip(there, *found, strict=True):
        masked = prediction.embeddings.clone()
        masked[first:][~row] = 0
        with prediction.running():
            p = prediction.rerun().logits(masked[None])[0].softmax(-1)[7]
            plain = torch.einsum("lhj,j->lh", attended(prediction)[..., first:], torch.where(row, 1.0, -1.0).double())
        assert float(log_odds) == pytest.approx(float((p / (1 - p)).log()), rel=1e-5)
        assert relative(features, plain) < 1e-6


@pytest.mark.thorough
def test_the_demo_model_is_fitted_better_than_with_equal_weights() -> None:
    model = heta_lens.load_demo_model()
    given = [ask(model, prompt) for prompt in prompts("recall", split="train", limit=4)]
    fitted = fit_at2(given, samples=8, steps=200, progress=False)
    again = fit_at2(given, samples=8, steps=200, progress=False)
    assert torch.equal(fitted.weights, again.weights)
    assert fitted.fitted["correlation"] > fitted.fitted["equal"] and fitted.fitted["prompts"] == 4


def one(family: str = "gpt2") -> Any:
    return predict(zoo.bridge(family), zoo.prompt(zoo.bridge(family), 4), 7)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("predictions", "options", "error", "says"),
    [
        ([], {"samples": 1}, ValueError, "samples=1"),
        ([], {}, ValueError, "to two predictions or more, not to 0: give more"),
        ([one, partial(one, "llama")], {}, ValueError, "predictions of one model"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    predictions: list[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fit_at2([each() if callable(each) else each for each in predictions], progress=False, **options)
