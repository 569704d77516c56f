"""Checkpoints, GGUF files and names on the hub: read whole, or refused in one sentence."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import heta_lens
from helpers import zoo
from helpers.gguf_files import MERGES, TEMPLATE, TOKENS, small_llama, write_gguf
from helpers.quantised import QuantisedLinear
from heta_lens.model.checkpoints import CheckpointError, check_separable, folder_of, read_gguf
from heta_lens.model.loading import absent_model, load_model

Damage = Callable[[Path], Any]
WEIGHT = "transformer.h.0.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small GPT-2 in one file and in shards, its unembedding tied (so not saved); and a Llama that is not tied."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("whole", "sharded", "untied")}
    for name, folder in folders.items():
        model = zoo.huggingface("llama" if name == "untied" else "gpt2", torch.float32)
        model.save_pretrained(folder, max_shard_size="3KB" if name == "sharded" else "1GB")
        zoo.tokenizer().save_pretrained(folder)
    return folders


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        kept = load_file(folder / "model.safetensors")
        change(kept)
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return damage


def config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def written(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def removed(pattern: str) -> Damage:
    return lambda folder: [file.unlink() for file in folder.glob(pattern)]


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_value(value: float) -> Damage:
    return tensors(lambda kept: kept[WEIGHT].view(-1)[3:4].fill_(value))


INDEX = "model.safetensors.index.json"

FAULTS: dict[str, tuple[str, Damage, list[str]]] = {
    "tensor missing": ("whole", tensors(lambda kept: kept.pop(WEIGHT)), ["lacks", WEIGHT]),
    "untied unembedding missing": (
        "untied",
        tensors(lambda kept: kept.pop("lm_head.weight")),
        ["lacks lm_head.weight"],
    ),
    "tensor unexpected": ("whole", tensors(lambda kept: kept.update(extra=torch.ones(2))), ["no place for", "extra"]),
    "tensor of another shape": (
        "whole",
        tensors(lambda kept: kept.update({WEIGHT: kept[WEIGHT][:3].clone()})),
        ["another shape", WEIGHT, "(3, 16), not (8, 16)"],
    ),
    "NaN": ("whole", with_value(torch.nan), ["not finite", WEIGHT]),
    "truncated": ("whole", truncated, ["cannot be loaded"]),
    "no weights": ("whole", removed("*.safetensors"), ["no *.safetensors"]),
    "pickle": ("whole", pickled, ["no *.safetensors", "pickles"]),
    "shard missing": ("sharded", removed("model-00002*"), ["cannot be loaded", "model-00002"]),
    "index missing": ("sharded", removed(INDEX), ["cannot be loaded", "model.safetensors"]),
    "index not JSON": ("sharded", written(INDEX, "{"), ["cannot be loaded"]),
    "no tokenizer_config": ("whole", removed("tokenizer_config.json"), ["no tokenizer_config.json", "save_pretrained"]),
    "tokenizer not JSON": ("whole", written("tokenizer.json", '{"model": '), ["cannot be loaded"]),
    "no config": ("whole", removed("config.json"), ["no config.json"]),
    "config of wrong type": ("whole", config(n_layer="two"), ["cannot be loaded", "n_layer", "two"]),
    "config of another model": ("whole", config(model_type="other"), ["cannot be loaded", "other"]),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_is_refused_in_one_sentence(fault: str, saved: dict[str, Path], tmp_path: Path) -> None:
    source, damage, words = FAULTS[fault]
    folder = tmp_path / "model"
    shutil.copytree(saved[source], folder)
    damage(folder)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        load_model(str(folder))
    sentence = str(refused.value)
    assert not [word for word in [str(folder), *words] if word not in sentence], sentence
    assert "\n" not in sentence and len(sentence) < 500 + len(str(folder))


def logits(folder: Path) -> torch.Tensor:
    model = load_model(str(folder))
    return model(torch.arange(5, 11)[None])


def benign(kept: dict[str, torch.Tensor]) -> None:
    """Buffers that older files hold."""
    kept["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    kept["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)


@torch.no_grad()
@pytest.mark.parametrize("source", ["whole", "sharded", "untied"])
def test_a_whole_checkpoint_loads_with_its_own_weights(source: str, saved: dict[str, Path], tmp_path: Path) -> None:
    plain = zoo.huggingface("llama" if source == "untied" else "gpt2", torch.float32)
    torch.testing.assert_close(logits(saved[source]), plain(torch.arange(5, 11)[None]).logits, rtol=1e-4, atol=1e-5)
    if source == "whole":
        folder = shutil.copytree(saved[source], tmp_path / "model")
        tensors(benign)(folder)
        assert torch.equal(logits(folder), logits(saved[source]))


@pytest.mark.parametrize("name", ["models/nope", "models/nope/deeper", "./nope", "~/nope-at-home"])
def test_a_path_that_is_not_here_is_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heta_lens.model.loading.read_from", lambda *_: pytest.fail("the hub was asked"))
    for load in (load_model, absent_model):
        with pytest.raises(ValueError, match=name):
            load(name)
    assert folder_of("org/model", "model") is None


def test_a_name_that_is_not_here_is_one_sentence_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"'no-such/model'.*Hugging Face hub\) cannot be loaded") as refused:
        load_model("no-such/model")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "refused"), [("qkv_proj", True), ("c_attn", True), ("W_pack", True), ("q_proj", False)]
)
def test_only_fused_matrices_that_are_quantised_are_refused(name: str, refused: bool) -> None:
    model = torch.nn.Module()
    model.add_module(name, torch.nn.Linear(2, 6))
    check_separable("m", model)
    model.add_module(name, QuantisedLinear(torch.nn.Linear(2, 6)))
    with pytest.raises(CheckpointError, match=rf"one quantised matrix \({name}\)") if refused else nullcontext():
        check_separable("m", model)


TEXT = "a  5 in a"


@pytest.fixture(scope="module")
def plain() -> Any:
    return small_llama()


@pytest.fixture
def file(plain: Any, tmp_path: Path) -> Path:
    write_gguf(plain, tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


@torch.no_grad()
def test_it_is_the_model_that_was_written(plain: Any, file: Path) -> None:
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    model = heta_lens.load_model(file)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == default
    ids = torch.arange(4, 24)[None]
    torch.testing.assert_close(model(ids), plain(ids).logits, atol=1e-5, rtol=1e-5)
    assert not model.training


def test_its_configuration_is_exact_and_it_can_be_saved(plain: Any, file: Path, tmp_path: Path) -> None:
    model, tokenizer = read_gguf(file)
    assert model.config.rms_norm_eps == 1e-5
    assert model.model.norm.variance_epsilon == 1e-5
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert getattr(model.config, "quantization_config", None) is None
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    direct, saved = heta_lens.load_model(file), heta_lens.load_model(tmp_path / "saved")
    ids = saved.to_tokens(TEXT)
    assert torch.equal(direct.to_tokens(TEXT), ids)
    torch.testing.assert_close(direct(ids), saved(ids), atol=0, rtol=0)
    torch.testing.assert_close(saved(ids), plain(ids).logits, atol=1e-5, rtol=1e-5)


def test_the_tokenizer_splits_as_the_file_says(plain: Any, file: Path, tmp_path: Path) -> None:
    """Digits are split off first: so the spaces before one are one token, and not two."""
    _, tokenizer = read_gguf(file)
    assert tokenizer.tokenize(TEXT) == ["a", "ĠĠ", "5", "Ġ", "in", "Ġa"]
    assert tokenizer.tokenize("<|im_start|>a") == ["<|im_start|>", "a"]
    assert tokenizer.chat_template == TEMPLATE
    assert (len(tokenizer), len(MERGES)) == (len(TOKENS), 3)
    write_gguf(plain, tmp_path / "other.gguf", splits="gpt-2")
    assert read_gguf(tmp_path / "other.gguf")[1].tokenize(TEXT) == ["a", "Ġ", "Ġ", "5", "Ġ", "in", "Ġa"]


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("absent.gguf", {}, r"there is no file '.*absent.gguf'; GGUF files in its folder: small.gguf"),
        ("", {"gguf_file": "absent"}, r"there is no file '.*absent'; GGUF files in its folder: small.gguf"),
        ("small.gguf", {"gguf_file": "small.gguf"}, "is no folder here"),
        ("nowhere/", {"gguf_file": "small.gguf"}, "is no folder here"),
        ("small.gguf", {"quantization_config": "8bit"}, "quantization_config= cannot be used with a GGUF file"),
        ("small.gguf", {"device_map": "auto"}, "device_map= cannot be used with a GGUF file, which takes dtype="),
    ],
)
@pytest.mark.usefixtures("file", "unchecked")
def test_what_does_not_fit_is_refused(place: str, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        heta_lens.load_model(str(tmp_path / place), **options)


def test_missing_weights_are_refused(plain: Any, file: Path) -> None:
    write_gguf(plain, file, without="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"lacks model.layers.1.mlp.up_proj.weight"):
        heta_lens.load_model(file)


def test_rescaled_frequencies_are_refused(plain: Any, file: Path) -> None:
    """Transformers leaves them out without a word."""
    write_gguf(plain, file, **{"rope_freqs.weight": np.ones(8, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"has rescaled rotary frequencies \(rope_freqs.weight\)"):
        heta_lens.load_model(file)
