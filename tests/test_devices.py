"""Models split over two devices, or partly on a disk: every answer is that of the same model on one."""

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
from helpers import zoo
from helpers.asking import QUICK, doubts_allowed
from helpers.second_device import SECOND, bridge_on_two_devices, second_device
from heta_lens import causal
from heta_lens.methods.registry import METHODS

VARIANTS: list[dict[str, Any]] = [
    {},
    {"groups": None},
    {"support": "row"},
    {"interactions": True},
    {"variant": "lr"},
    {"variant": "ls", "layers": 1},
    {"variant": "gs"},
    {"variant": "gn"},
    {"variant": "win", "window": 4, "overlap": 0.5},
    {"variant": "kl_only"},
]
OPTIONS = QUICK | {"sea_cot": {"length": 5, "explanations": 1, "entail": lambda *_: 0.5}}
Pair = tuple[Any, Any, torch.Tensor]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The caches of one model on one device and on two, and the ids."""
    one = zoo.bridge(request.param, torch.float32, n_layers=3)
    ids = zoo.prompt(one)
    with second_device():
        two = bridge_on_two_devices(zoo.huggingface(request.param, torch.float32, n_layers=3), zoo.tokenizer())
        caches = [model.run_with_cache(ids)[1] for model in (one, two)]
        assert caches[1]["pattern", 0].device != caches[1]["pattern", 2].device == SECOND
        yield *caches, ids


def check_same(pair: Pair, explain: Callable[[Any], torch.Tensor]) -> None:
    one, two, _ = pair
    expected, found = explain(one), explain(two)
    assert found.device == expected.device
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.thorough
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_heta(pair: Pair, options: dict[str, Any]) -> None:
    with doubts_allowed():
        check_same(pair, lambda cache: heta_lens.attribute(cache, tokens=pair[2], **options).scores)


@pytest.mark.sample(quick=2, test=4)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "heta"])
def test_every_other_method(pair: Pair, method: str) -> None:
    options = OPTIONS.get(method, {})
    with doubts_allowed():
        check_same(pair, lambda cache: heta_lens.attribute(cache, tokens=pair[2], method=method, **options).scores)


@pytest.mark.thorough
def test_spans(pair: Pair) -> None:
    check_same(pair, lambda cache: heta_lens.attribute_span(cache, -2, tokens=pair[2], probes=2).matrix)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"variant": "ls", "layers": 1}], ids=str)
def test_patterns_that_were_not_cached(pair: Pair, options: dict[str, Any]) -> None:
    one, two, ids = pair
    lean = [cache.model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)[1] for cache in (one, two)]
    check_same((*lean, ids), lambda cache: heta_lens.attribute(cache, tokens=ids, probes=2, **options).scores)


def test_ids_are_recovered(pair: Pair) -> None:
    check_same(pair, lambda cache: heta_lens.attribute(cache, method="recency").ids)


def test_causal_questions(pair: Pair) -> None:
    check_same(pair, lambda cache: causal.ablate_heads(cache, tokens=pair[2]).values)


OFFLOADS = "offload_folder" in signature(TransformerBridge.boot_transformers).parameters


@pytest.fixture(scope="module")
def offloaded(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The caches of a model in memory and of one with a layer on the disk, and the ids."""
    folder, disk = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("disk")
    zoo.huggingface("llama", torch.float32, n_layers=3).save_pretrained(folder)
    zoo.tokenizer().save_pretrained(folder)
    rest = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")
    places = {**dict.fromkeys(rest, "cpu"), "model.layers.2": "disk"}
    both = [heta_lens.load_model(folder, dtype="float32"),
            heta_lens.load_model(folder, dtype="float32", device_map=places, offload_folder=str(disk))]  # fmt: skip
    assert "meta" in {parameter.device.type for parameter in both[1].blocks[2].parameters()}
    ids = zoo.prompt(both[0])
    one, two = (model.run_with_cache(ids)[1] for model in both)
    return one, two, ids


@pytest.mark.skipif(not OFFLOADS, reason="TransformerLens 3 offloads nothing to a disk")
@pytest.mark.sample(quick=1, test=6)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_a_layer_on_the_disk(offloaded: Pair, method: str) -> None:
    options = OPTIONS.get(method, {})
    with doubts_allowed():
        check_same(
            offloaded, lambda cache: heta_lens.attribute(cache, tokens=offloaded[2], method=method, **options).scores
        )
