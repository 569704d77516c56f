"""What `load_model` is told, checked before anything is loaded."""

import re
import warnings
from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig

from heta_lens.model import loading
from heta_lens.model.loading import boot_options, check_places, default_dtype, on_processor, quantisation, read_map


def test_what_is_not_given_is_left_out() -> None:
    assert boot_options({"dtype": None, "trust_remote_code": False, "n_ctx": 8}) == {"n_ctx": 8}
    assert boot_options({"load_weights": False, "dtype": None}) == {"load_weights": False}
    assert boot_options({"dtype": "bfloat16"}) == boot_options({"dtype": torch.bfloat16}) == {"dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "fp16"}, "dtype='fp16' is not one of float64, float32, bfloat16, float16"),
        ({"dtype": "bf16"}, "did you mean 'bfloat16'?"),
        ({"dtype": "BFloat16"}, "did you mean 'bfloat16'?"),
        ({"device": 3}, "device='cuda:3': this machine has no device cuda"),
        ({"dtype": torch.int8}, "for fewer bits give quantization_config='8bit'"),
        ({"device": "gpu"}, "device='gpu' is no device, such as cpu, cuda or cuda:1"),
        ({"device": "cuda:7"}, "device='cuda:7': this machine has no device cuda"),
        ({"device": "cpu:1"}, "device='cpu:1': this machine has only cpu:0"),
        ({"device": "meta"}, "device='meta' holds no weights: heta_lens.estimate_memory needs none"),
        ({"device_map": {"a": "b"}}, "device_map={'a': …}='b' is no device"),
        ({"n_devices": 0}, "n_devices=0 must be at least 1"),
        ({"device": "cpu", "device_map": "auto"}, "device='cpu' and device_map='auto' both say where: give one"),
        ({"n_devices": 3}, "n_devices=3: this machine has 0 GPUs"),
        ({"max_memory": {0: "1GB"}}, "give device_map='auto' with it"),
        ({"quantization_config": "3bit"}, "quantization_config='3bit' is not 8bit or 4bit"),
        ({"quantization_config": {"quant_method": "none"}}, "refused by transformers: Unknown quantization type"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        boot_options(options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trust_remote_code": "no"}, "trust_remote_code='no' must be True or False"),
        ({"max_memory": "1GB", "device_map": "auto"}, "max_memory='1GB' must say a size for each device"),
        ({"max_memory": {0: None}, "device_map": "auto"}, "max_memory={0: None} must say a size for each device"),
        ({"device_map": {0: "cpu"}}, "device_map={0: 'cpu'} must be 'auto', or a dict"),
        ({"device_map": 5}, "device_map=5 must be 'auto', or a dict"),
        ({"device_map": {}}, "device_map={} must be 'auto', or a dict"),
        ({"n_devices": "2"}, "n_devices='2' must be a whole number"),
        ({"tokenizer": "gpt2"}, "tokenizer='gpt2' must be a tokenizer of transformers"),
        ({"quantization_config": 8}, "quantization_config=8 is not 8bit or 4bit, nor one of transformers"),
    ],
    ids=str,
)
def test_other_types_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=re.escape(sentence)):
        boot_options(options)


@pytest.mark.parametrize(
    "name", ["", "model", "transformer", "lm_head", "model.embed_tokens", "transformer.wte", "gpt_neox.embed_out"]
)
def test_what_is_read_cannot_be_on_the_disk(name: str) -> None:
    check_places({name: "cpu", "model.layers.0": "disk"})
    what = repr(name) if name else "the whole model"
    with pytest.raises(ValueError, match=f"device_map= puts {what} on the disk, and embeddings"):
        check_places({name: "disk", "x": "cpu"})


def test_devices_are_named_as_accelerate_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "check_device", lambda *_: None)
    places = {"a": torch.device("cpu"), "b": "cpu:0", "c": 1, "d": "disk", "e": "cuda:1"}
    named = boot_options({"device_map": places})["device_map"]
    assert named == {"a": "cpu", "b": "cpu", "c": 1, "d": "disk", "e": "cuda:1"}


def test_an_option_that_nobody_takes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"load_model takes no devise_map= \(did you mean device_map=\?\)"):
        boot_options({"devise_map": "auto"})


def test_bits_are_those_of_bitsandbytes() -> None:
    for bits in ("8bit", "4bit"):
        config = quantisation(bits)
        assert isinstance(config, BitsAndBytesConfig)
        assert (config.load_in_8bit, config.load_in_4bit) == (bits == "8bit", bits == "4bit")
    ready = BitsAndBytesConfig(load_in_8bit=True)
    assert quantisation(ready) is ready


def test_a_checkpoint_of_half_precision_is_loaded_in_single_precision_on_a_cpu() -> None:
    with pytest.warns(UserWarning, match=r"'m' is saved in bfloat16 and loaded in float32.*dtype='bfloat16' keeps it"):
        assert default_dtype("m", {"device": "cpu"}, torch.bfloat16) == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert default_dtype("m", {"device": "cuda:1"}, torch.bfloat16) == torch.bfloat16
        assert default_dtype("m", {"device": "cpu"}, torch.float64) == torch.float64
        assert default_dtype("m", {"device": "cpu"}, None) == torch.float32


@pytest.mark.parametrize(
    ("given", "cpu"),
    [
        ({}, False),
        ({"device": "cpu"}, True),
        ({"device_map": "cpu"}, True),
        ({"device_map": "auto"}, False),
        ({"device_map": {"": "cpu"}}, True),
        ({"device_map": {"model.embed": torch.device("cpu"), "model.layers": "disk"}}, True),
        ({"device_map": {"model.embed": "cpu", "model.layers": 0}}, False),
        ({"n_devices": 2}, False),
    ],
    ids=str,
)
def test_where_a_model_will_run_on_a_machine_with_a_gpu(
    given: dict[str, Any], cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "get_device", lambda: "cuda")
    assert on_processor(given) == cpu


def test_maps_are_read_from_text() -> None:
    assert read_map("auto") == "auto"
    assert read_map("0=20GB,cpu=60") == {0: "20GB", "cpu": 60}
    assert read_map('{"model.layers.0": "cpu", "0": 1}') == {"model.layers.0": "cpu", 0: 1}
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_map("{'a': 1}")
