"""The parts that a model's layers are made of."""

from types import SimpleNamespace

import pytest

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.norms_and_neurons import irregularity, neurons, norms, weight_processing


def test_the_parts_of_gpt2_and_llama() -> None:
    gpt2, llama = ModelAdapter(zoo.bridge("gpt2")), ModelAdapter(zoo.bridge("llama"))
    assert irregularity(gpt2) is None
    assert irregularity(llama) is None
    assert len(norms(gpt2)) == len(norms(llama)) == 2 * gpt2.layers + 1
    plain, gated = neurons(gpt2, 0), neurons(llama, 0)
    assert plain is not None
    assert plain.gated is None
    assert gated is not None
    assert gated.gated == "blocks.0.mlp.hook_pre_linear"


@pytest.mark.usefixtures("unchecked")
def test_a_model_without_mlps_has_no_neurons() -> None:
    assert neurons(SimpleNamespace(model=SimpleNamespace(cfg=SimpleNamespace(attn_only=True))), 0) is None  # type: ignore[arg-type]


def test_how_the_weights_were_processed() -> None:
    facts = weight_processing(ModelAdapter(zoo.bridge("gpt2")))
    assert facts["kind"] == "TransformerBridge"
    assert facts["value_biases"] in (True, False)
