"""AT2: weighted attention, and where its weights come from."""

from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.methods.at2 import At2, HeadWeights, attended, demo_weights

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


def test_the_demo_model_has_its_own() -> None:
    model = heta_lens.load_demo_model()
    prediction = predict(model, model.to_tokens("The key was put in the box by Leo."), " box")
    found = At2()(prediction)
    own = At2(weights=demo_weights().weights)(prediction)
    assert torch.equal(found.scores, own.scores) and "not fitted" not in found.diagnostics["note"]
    assert prediction.begins == bool(found.scores[0] == 0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("weights", "error", "says"),
    [
        (torch.rand(3, 4), ValueError, r"weights are of shape \(3, 4\); this model's heads are \(2, 4\)"),
        (torch.rand(4), ValueError, r"must be floats of shape \[layer, head\]"),
        (torch.ones(2, 4, dtype=torch.long), ValueError, "must be floats"),
        (3, TypeError, "must be a file of heta-lens fit-at2, or a tensor"),
    ],
)
def test_other_weights_are_refused(weights: Any, error: type[Exception], says: str) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, N), 7)
    with pytest.raises(error, match=says):
        At2(weights=weights)(prediction)
