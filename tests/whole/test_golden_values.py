"""Known values, against silent drift. This file, run as a script, writes them anew; say why in the commit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import explain, relative

GOLDEN = Path(__file__).with_name("golden_values.json")
MODELS = ["bridge-gpt2", "bridge-neox", "bridge-native", "hooked-rotary_gqa", "hooked-alibi"]
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "balanced": {"balance": "sum", "seed": 3, "probes": 4},
    "row": {"support": "row", "flow": "prefix_head", "value_norm": 2, "mask": "mean", "kl": "js"},
}


def scores(name: str, options: dict[str, Any]) -> torch.Tensor:
    model = dict(zoo.KINDS)[name]()
    return explain(model, zoo.prompt(model, 7), 9, **options).scores


@pytest.mark.parametrize("question", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_drifted(name: str, question: str) -> None:
    if name not in dict(zoo.KINDS):
        pytest.skip("HookedTransformer was removed in TransformerLens 4")
    expected = torch.tensor(json.loads(GOLDEN.read_text())[name][question], dtype=torch.float64)
    assert relative(scores(name, OPTIONS[question]), expected) < 1e-6


if __name__ == "__main__":
    values = {
        name: {question: scores(name, options).tolist() for question, options in OPTIONS.items()} for name in MODELS
    }
    GOLDEN.write_text(json.dumps(values, indent=1) + "\n")
