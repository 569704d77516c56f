"""The model that ships with the library: it loads offline, the same in both kinds, and does what its card says."""

import socket
import subprocess
import sys
import time
from itertools import islice
from math import sqrt
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import doubts_allowed
from helpers.paths import ROOT
from heta_lens.data.recall import stories
from heta_lens.data.recall_story import Story
from heta_lens.model import loading, prompt_encoding

KINDS: list[Any] = ["hooked", "bridge"] if zoo.HAS_HOOKED else ["bridge"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", KINDS)
def test_it_loads_offline_and_fast(kind: Any) -> None:
    heta_lens.load_demo_model(kind)
    started = time.perf_counter()
    model = heta_lens.load_demo_model(kind)
    assert time.perf_counter() - started < 2
    assert type(model).__name__ == {"hooked": "HookedTransformer", "bridge": "TransformerBridge"}[kind]
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_default_is_a_hooked_transformer_where_there_is_one() -> None:
    assert type(heta_lens.load_demo_model()).__name__ == (
        "HookedTransformer" if zoo.HAS_HOOKED else "TransformerBridge"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_loading_leaves_the_caller_alone(kind: Any) -> None:
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        model = heta_lens.load_demo_model(kind)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    floats = {value.dtype for value in (*model.parameters(), *model.buffers()) if value.is_floating_point()}
    assert floats == {torch.float32}


@pytest.mark.usefixtures("unchecked")
def test_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kind='native' is not one of hooked, bridge"):
        heta_lens.load_demo_model("native")  # type: ignore[arg-type]
    monkeypatch.setattr(loading, "HAS_HOOKED", False)
    with pytest.raises(ValueError, match="kind='hooked' needs TransformerLens 3"):
        heta_lens.load_demo_model("hooked")


def test_the_files_are_small_enough_to_ship() -> None:
    files = list(loading.DEMO.iterdir())
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {file.name for file in files}
    assert sum(file.stat().st_size for file in files) <= 6_000_000


def test_the_wheel_holds_the_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    assert {f"heta_lens/demo_model/{file.name}" for file in loading.DEMO.iterdir()} <= names


def test_it_is_as_large_as_promised() -> None:
    config = heta_lens.load_demo_model("bridge").cfg
    assert config.n_layers >= 3
    assert config.n_heads >= 2
    assert config.n_ctx >= 1024


def told(count: int, **knobs: Any) -> list[Story]:
    return list(islice(stories("test", seed=1, **knobs), count))


@pytest.mark.slow
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_both_kinds_give_the_same_log_probabilities() -> None:
    hooked, bridge = (heta_lens.load_demo_model(kind) for kind in ("hooked", "bridge"))
    for story in [*told(3), *told(3, hops=2), *told(1, facts=40, filler=80)]:
        one, other = (model(model.to_tokens(story.text)).log_softmax(-1) for model in (hooked, bridge))
        assert one.shape[1] == len(story.pieces) + 1
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_it_is_the_model_of_the_library_it_was_trained_with() -> None:
    """The weights file alone, run by transformers, says the same as the loaded model."""
    from transformers import AutoModelForCausalLM

    plain, model = AutoModelForCausalLM.from_pretrained(loading.DEMO), heta_lens.load_demo_model()
    ids = model.to_tokens(told(1)[0].text)
    torch.testing.assert_close(plain(ids).logits.log_softmax(-1), model(ids).log_softmax(-1), atol=1e-4, rtol=0)


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
    """As promised, but for what so few prompts may miss by chance; the benchmark has the figures."""
    asked = told(150, **knobs)
    may_miss = 3 * sqrt(promised * (1 - promised) / len(asked))
    model = heta_lens.load_demo_model()
    assert share(model, asked) > promised - may_miss
    assert share(model, [one.counterfactual for one in asked]) > promised - may_miss


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_a_recall_prompt_is_explained_by_its_evidence() -> None:
    model = heta_lens.load_demo_model()
    (story,) = told(1)
    ids = model.to_tokens(story.text)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    with doubts_allowed():
        attribution = heta_lens.attribute(cache, tokens=ids)
    assert attribution.target_text == story.answer
    evidence = {at for stretch in story.evidence for at in stretch.tokens}
    assert evidence & {at for one in attribution.top(5) for at in one.positions}


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "./nowhere", "~/nowhere/at/all"])
def test_a_folder_that_is_not_there_is_said_so(name: str) -> None:
    with pytest.raises(ValueError, match=f"no model '{name}': give demo"):
        loading.load_model(name)


def test_a_folder_of_a_saved_model_loads_by_its_name() -> None:
    model = loading.load_model(str(loading.DEMO))
    assert type(model).__name__ == "TransformerBridge"
    ids = prompt_encoding.encode(model, "Mia put the key in the drawer.")
    expected = heta_lens.load_demo_model()(ids).log_softmax(-1)
    torch.testing.assert_close(model(ids).log_softmax(-1), expected, atol=1e-4, rtol=0)
