"""The page of the paper's models is written by predicting each of its rows."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks import recipes

TINY = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, vocab_size=64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "billions"), [("Qwen2.5 3B", 3.09), ("GPT-J 6B", 6.05), ("Phi-3 14B", 13.96), ("Llama-3.1 70B", 70.55)]
)
def test_models_are_as_large_as_their_names(name: str, billions: float) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(recipes.MODELS[name].config)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.thorough
def test_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recipes, "PAGE", tmp_path / "RECIPES.md")
    monkeypatch.setattr(recipes, "MODELS", {"tiny": recipes.Shape(TINY, 600, 2)})
    recipes.main()
    rows = recipes.PAGE.read_text().splitlines()[4:]
    assert len(rows) == len(recipes.recipes(2))
    assert all(row.startswith("| tiny | 600 |") and row.endswith("| yes |") for row in rows)
    assert "variant='ls+win', layers=2, window=512" in rows[5]
