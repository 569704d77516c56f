"""A model is built from its configuration alone, without weights."""

import json
from pathlib import Path

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CTRLConfig,
    GPT2Config,
    GPTJConfig,
    LlamaConfig,
    PretrainedConfig,
)

import heta_lens
from helpers import zoo
from heta_lens.model.loading import absent_model, weights

CONFIG = LlamaConfig(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, dtype="bfloat16"
)


@pytest.mark.slow
def test_a_folder_its_file_and_a_configuration_give_the_same(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    for given in (CONFIG, tmp_path, str(tmp_path), tmp_path / "config.json"):
        model = absent_model(given)
        assert {tensor.device.type for tensor in weights(model)} == {"meta"}
        assert (model.cfg.n_layers, model.embed.W_E.dtype) == (2, torch.bfloat16)
    assert absent_model(CONFIG, "float32").embed.W_E.dtype == torch.float32


@pytest.mark.parametrize(
    "config", [CONFIG, GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)], ids=["llama", "gpt2"]
)
def test_its_weights_take_as_much_as_those_of_a_model_that_is_there(config: PretrainedConfig) -> None:
    there = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    bridge = TransformerBridge.boot_transformers("there", hf_model=there, tokenizer=zoo.tokenizer(), device="cpu")
    absent = absent_model(config, "float32")
    sizes = [sum(one.untyped_storage().nbytes() for one in weights(model)) for model in (absent, bridge)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_a_kind_of_model_is_not_taken_for_a_name_that_transformer_lens_has_renamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    absent_model(GPTJConfig(n_embd=16, n_layer=1, n_head=2, rotary_dim=4, vocab_size=50))
    assert "DEPRECATED" not in caplog.text


def test_what_transformer_lens_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="a ctrl model cannot be built without its weights: "):
        absent_model(CTRLConfig(n_embd=16, n_layer=2, n_head=2, vocab_size=50))


def test_what_is_no_configuration_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="config=3 must be a folder"):
        absent_model(3)
    with pytest.raises(ValueError, match=r"no configuration '.*nowhere': give demo"):
        absent_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"the configuration .* cannot be loaded: "):
        absent_model(tmp_path)
    with pytest.raises(ValueError, match=r"has no config\.json"):
        absent_model(tmp_path.parent)
    with pytest.raises(ValueError, match="dtype='int3' is not one of"):
        absent_model(CONFIG, "int3")


def test_the_demo_model_has_a_configuration_too() -> None:
    assert absent_model("demo").cfg.d_vocab == heta_lens.load_demo_model().cfg.d_vocab


def test_encoders_are_refused() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    with pytest.raises(ValueError, match=r"is not a decoder-only language model|cannot be built without its weights"):
        absent_model(BertConfig(**sizes, vocab_size=50))


def test_code_of_a_configuration_is_not_run_unless_it_is_trusted(tmp_path: Path) -> None:
    zoo.huggingface("llama").save_pretrained(tmp_path)
    zoo.tokenizer().save_pretrained(tmp_path)
    config = {**CONFIG.to_dict(), "model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    for load in (absent_model, heta_lens.load_model):
        with pytest.raises(ValueError, match="code of its own, which runs only with trust_remote_code=True"):
            load(tmp_path)


def test_quantised_weights_are_refused() -> None:
    quantised = LlamaConfig(**CONFIG.to_dict() | {"quantization_config": {"quant_method": "bitsandbytes"}})
    with pytest.raises(ValueError, match="is saved quantised"):
        absent_model(quantised)
