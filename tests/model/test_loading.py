"""Models that load: the demo model, models by name, folder or configuration, and the options of loading."""

import json
import re
import socket
from functools import wraps
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig

import heta_lens
from helpers import zoo
from heta_lens.data.recall import Story, stories
from heta_lens.model import loading
from heta_lens.model.loading import absent_model, boot_options

KINDS: list[Any] = ["hooked", "bridge"] if zoo.HAS_HOOKED else ["bridge"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", KINDS)
def test_it_loads_offline(kind: Any) -> None:
    model = heta_lens.load_demo_model(kind)
    assert type(model).__name__ == {"hooked": "HookedTransformer", "bridge": "TransformerBridge"}[kind]
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.usefixtures("unchecked")
def test_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kind='native' is not one of 'hooked', 'bridge'"):
        heta_lens.load_demo_model("native")  # type: ignore[arg-type]
    monkeypatch.setattr(loading, "HAS_HOOKED", False)
    with pytest.raises(ValueError, match="kind='hooked' needs TransformerLens 3"):
        heta_lens.load_demo_model("hooked")


def told(count: int, **knobs: Any) -> list[Story]:
    return list(islice(stories("test", seed=1, **knobs), count))


@pytest.mark.slow
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_both_kinds_give_the_same_log_probabilities() -> None:
    hooked, bridge = (heta_lens.load_demo_model(kind) for kind in ("hooked", "bridge"))
    for story in [*told(3), *told(3, hops=2), *told(1, facts=40, filler=80)]:
        one, other = (model(model.to_tokens(story.text)).log_softmax(-1) for model in (hooked, bridge))
        assert one.shape[1] == len(story.tokens) + 1
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@torch.no_grad()
def share(model: Any, asked: list[Story]) -> float:
    said = [model.tokenizer.decode(int(model(model.to_tokens(one.text))[0, -1].argmax())) for one in asked]
    return sum(answer == one.answer for answer, one in zip(said, asked, strict=True)) / len(asked)


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.parametrize(
    ("knobs", "promised"),
    [({}, 0.98), ({"rivals": 5}, 0.98), ({"hops": 2}, 0.90), ({"claim": True}, 0.90)],
    ids=["one hop", "one hop, all rivals", "two hops", "claims"],
)
@pytest.mark.usefixtures("unchecked")
def test_it_answers(knobs: dict[str, Any], promised: float) -> None:
    """As promised in benchmarks/DEMO_MODEL.md, but for what so few prompts may miss by chance."""
    asked = told(150, **knobs)
    may_miss = 3 * sqrt(promised * (1 - promised) / len(asked))
    model = heta_lens.load_demo_model()
    assert share(model, asked) > promised - may_miss
    assert share(model, [one.counterfactual for one in asked]) > promised - may_miss


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo model in bfloat16."""
    folder = tmp_path_factory.mktemp("half")
    AutoModelForCausalLM.from_pretrained(loading.DEMO, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(loading.DEMO).save_pretrained(folder)
    return folder


def test_a_run_of_a_loaded_model_keeps_no_graph(half: Path) -> None:
    for model in (heta_lens.load_demo_model(), heta_lens.load_model(half, dtype="float32")):
        logits, cache = model.run_with_cache(torch.tensor([[5, 6, 7]]))
        assert not logits.requires_grad
        assert not any(activation.requires_grad for activation in cache.values())


def test_precision(half: Path) -> None:
    with pytest.warns(UserWarning, match="saved in bfloat16 and loaded in float32"):
        single = heta_lens.load_model(half)
    kept = heta_lens.load_model(str(half), dtype="bfloat16")
    for model, dtype in ((single, torch.float32), (kept, torch.bfloat16)):
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert not model.training


def test_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    @wraps(loading.TransformerBridge.boot_transformers)
    def boot(_: str, **options: Any) -> Any:
        given.update(options)
        return torch.nn.ModuleDict({"embed": torch.nn.Identity(), "unembed": torch.nn.Identity()})

    monkeypatch.setattr(loading.TransformerBridge, "boot_transformers", staticmethod(boot))
    heta_lens.load_model("demo", device_map="auto", max_memory={"cpu": "8GB"}, n_ctx=64)
    assert (given["device_map"], given["max_memory"], given["n_ctx"]) == ("auto", {"cpu": "8GB"}, 64)
    heta_lens.load_model("demo", quantization_config="8bit", device="cpu")
    assert given["device_map"] == {"": "cpu"}, "quantised weights cannot be moved once they are loaded"
    assert given["model_class"].quantise.load_in_8bit


def test_a_model_that_is_already_loaded_keeps_its_precision() -> None:
    loaded = AutoModelForCausalLM.from_pretrained(loading.DEMO, dtype=torch.bfloat16)
    model = heta_lens.load_model(loaded)
    assert model.original_model is loaded
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    for name, value in {"revision": "main", "n_ctx": 8, "device_map": "auto"}.items():
        with pytest.raises(ValueError, match=f"{name}= says how to load weights, .* give it to from_pretrained"):
            heta_lens.load_model(loaded, **{name: value})
    with pytest.raises(ValueError, match=r"dtype= says how .*: call model.to\(torch.float16\) first"):
        heta_lens.load_model(loaded, dtype="float16")
    with pytest.raises(TypeError, match="this TransformerBridge is a TransformerLens model already"):
        heta_lens.load_model(model)
    with pytest.raises(TypeError, match="a Linear, not a transformers model"):
        heta_lens.load_model(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="model=3 must be demo, a name, a folder"):
        heta_lens.load_model(3)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "neox", "phi3"])
def test_fused_queries_keys_and_values_that_are_quantised_are_refused(family: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    zoo.huggingface(family).save_pretrained(tmp_path)
    zoo.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"keys and values are one quantised matrix \(\S*0\S*\), which TransformerLens"
    ):
        heta_lens.load_model(tmp_path, quantization_config="8bit", dtype="float32")
    assert heta_lens.load_model(tmp_path, dtype="float32").cfg.n_layers == 2


@pytest.mark.slow
def test_quantised_while_loading_and_saved_quantised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("bitsandbytes")
    model = heta_lens.load_model("demo", quantization_config="8bit")
    saved = AutoModelForCausalLM.from_pretrained(
        loading.DEMO, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu", dtype=torch.float32
    )
    saved.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(loading.DEMO).save_pretrained(tmp_path)
    again = heta_lens.load_model(tmp_path)
    ids = model.to_tokens(told(1)[0].text)
    torch.testing.assert_close(model(ids), again(ids))
    assert torch.int8 in {parameter.dtype for parameter in again.parameters()}
    assert len([record for record in caplog.records if "MatMul8bitLt" in record.getMessage()]) <= 1


def test_an_error_of_the_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it.")

    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(ValueError, match=r"the model 'a/b' .* cannot be loaded: You are trying to access a gated"):
        heta_lens.load_model("a/b")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "fp16"}, "dtype='fp16' is not one of float64, float32, bfloat16, float16"),
        ({"dtype": torch.int8}, "for fewer bits give quantization_config='8bit'"),
        ({"quantization_config": "3bit"}, "quantization_config='3bit' is not 8bit or 4bit"),
        ({"quantization_config": 8}, "quantization_config=8 is not 8bit or 4bit, nor a configuration"),
        ({"quantization_config": {"quant_method": "none"}}, "Unknown quantization type"),
        ({"n_devices": 2, "device_map": "auto"}, "n_devices=2 and device_map='auto' both say where: give one"),
        (
            {"n_devices": 1, "max_memory": {0: "1GB"}},
            "max_memory= is for a split that is not written out: give device_",
        ),
        ({"device_map": {"": "cpu"}, "max_memory": {0: "1GB"}}, "give device_map='auto' or n_devices= too"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        boot_options(options)


@pytest.mark.parametrize("places", [{"device_map": "cpu"}, {"device": "cpu", "n_devices": 1}], ids=str)
def test_a_model_on_the_cpu_is_in_single_precision(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "get_device", lambda: torch.device("cuda"))
    with pytest.warns(UserWarning, match="saved in bfloat16 and loaded in float32"):
        assert loading.default_dtype("m", boot_options(places), torch.bfloat16) == torch.float32


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    for load in (absent_model, heta_lens.load_model):
        with pytest.raises(ValueError, match=f"revision='main' is of a .* on the hub, and '{tmp_path}' is here"):
            load(str(tmp_path), revision="main")


def test_other_devices_and_options_are_refused() -> None:
    for options, words in (({"device": "gpu"}, "gpu"), ({"device_mp": "auto"}, "device_mp")):
        with pytest.raises(ValueError, match=f"the model '.*' cannot be loaded: .*{words}"):
            heta_lens.load_model("demo", **options)


CONFIG = LlamaConfig(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, dtype="bfloat16"
)


def test_a_folder_its_file_and_a_configuration_give_the_same(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    for given in (CONFIG, tmp_path, str(tmp_path), tmp_path / "config.json"):
        model = absent_model(given)
        assert {tensor.device.type for tensor in model.parameters()} == {"meta"}
        assert (model.config.num_hidden_layers, model.dtype) == (2, torch.bfloat16)
    assert absent_model(CONFIG, "float32").dtype == torch.float32


def test_what_is_no_configuration_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected str"):
        absent_model(3)
    with pytest.raises(ValueError, match=r"no configuration '.*nowhere': give demo"):
        absent_model(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"the configuration .* cannot be loaded: "):
        absent_model(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        absent_model(tmp_path.parent)
    with pytest.raises(ValueError, match="dtype='int3' is not one of"):
        absent_model(CONFIG, "int3")


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


def test_a_folder_without_a_tokenizer_takes_one(half: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(half / file)
    with pytest.raises(ValueError, match=r"has no tokenizer_config\.json"):
        heta_lens.load_model(tmp_path)
    model = heta_lens.load_model(tmp_path, dtype="bfloat16", tokenizer=AutoTokenizer.from_pretrained(half))
    assert model.to_tokens("Leo put the key in the").shape[1] == 7
