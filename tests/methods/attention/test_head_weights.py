"""Weights of heads: kept in a file, and recognised as belonging to a model."""

from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from heta_lens._util.storage import save
from heta_lens.methods.at2 import KIND, VERSION, HeadWeights, demo_weights, equal_weights
from heta_lens.model.adapter import ModelAdapter


def adapter_of(model: Any) -> ModelAdapter:
    return ModelAdapter.of(model.run_with_cache(zoo.prompt(model, 4))[1])


def retrained(family: str) -> Any:
    """The same architecture with other embeddings."""
    model = zoo.bridge.__wrapped__(family)
    next(weight for name, weight in model.named_parameters() if "embed" in name).data.mul_(1.5)
    return model


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    adapter = adapter_of(zoo.bridge("gpt2"))
    weights = HeadWeights.of(adapter, torch.rand(2, 4, dtype=torch.float64), held_out=0.5, prompts=7)
    weights.save(tmp_path / "w.safetensors")
    again = HeadWeights.load(tmp_path / "w.safetensors")
    assert torch.equal(again.weights, weights.weights) and again.model == weights.model
    assert again.fitted == {"held_out": 0.5, "prompts": 7} and again.belongs_to(adapter)


def test_they_belong_to_a_model_and_not_to_a_class_or_precision() -> None:
    weights = HeadWeights.of(adapter_of(zoo.bridge("llama")), torch.rand(2, 4))
    assert not zoo.HAS_HOOKED or weights.belongs_to(adapter_of(zoo.hooked("llama")))
    assert weights.belongs_to(adapter_of(zoo.bridge("llama", torch.bfloat16)))
    assert not weights.belongs_to(adapter_of(retrained("llama")))
    assert not weights.belongs_to(adapter_of(zoo.bridge("llama", n_layers=3)))


@pytest.mark.parametrize("kind", ["hooked", "bridge"])
def test_those_of_the_demo_model_ship_with_it(kind: Any) -> None:
    if kind == "hooked" and not zoo.HAS_HOOKED:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    model = heta_lens.load_demo_model(kind)
    adapter = ModelAdapter.of(model.run_with_cache(model.to_tokens("The key was in the box."))[1])
    assert demo_weights().belongs_to(adapter)
    assert float(demo_weights().weights.abs().sum()) == pytest.approx(1)
    assert demo_weights().fitted["held_out"] > demo_weights().fitted["equal"] > 0


def test_equal_weights_sum_to_1() -> None:
    equal = equal_weights(adapter_of(zoo.bridge("gpt2")))
    assert equal.shape == (2, 4) and float(equal.sum()) == pytest.approx(1) and equal.std() == 0


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is not a heta_lens head weights file"):
        HeadWeights.load(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weights": 3}, "its weights is 3"),
        ({"lengths": torch.ones(2, 2)}, "its lengths is a tensor"),
        ({"fitted": 3}, "its fitted is 3"),
        ({"odd": 3}, "it has an unknown field 'odd'"),
    ],
)
def test_a_file_of_other_things_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    value = {"weights": torch.rand(2, 4), "model": "m", "lengths": torch.ones(3), "fitted": {}, **change}
    save(tmp_path / "w.safetensors", KIND, VERSION, value)
    with pytest.raises(ValueError, match=f"damaged heta_lens head weights file: {says}"):
        HeadWeights.load(tmp_path / "w.safetensors")
