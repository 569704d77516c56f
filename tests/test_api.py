"""Methods as `attribute` and `attribute_span` take them: by name with options, ready, or as a preset."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.batches import N, alone
from heta_lens import Heta, attribute, attribute_span
from heta_lens.methods.heta.heta import PRESETS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]


@pytest.mark.parametrize("build", zoo.models("bridge-llama|hooked-gpt2"))
def test_float32_changes_little(build: Any) -> None:
    model = build(torch.float32)
    ids = zoo.prompt(model, 18)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 16, tokens=ids, probes=1)
    for step, expected in zip(span.steps, alone(cache, ids, (16, 17), probes=1), strict=True):
        assert relative(step.scores, expected.scores) < 3e-5


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("method", [Heta(probes=3, balance="sum"), Heta(variant="gs"), Heta.preset("released")])
def test_a_ready_method_is_its_options(cache: Any, ids: Tensor, method: Heta) -> None:
    options = {entry.name: getattr(method, entry.name) for entry in fields(method)}
    expected = attribute_span(cache, 9, tokens=ids, **options)
    assert torch.equal(attribute_span(cache, 9, tokens=ids, method=method).matrix, expected.matrix)
    single = attribute(cache, 7, tokens=ids, method=method)
    assert torch.equal(single.scores, attribute(cache, 7, tokens=ids, **options).scores)
    assert torch.equal(single.scores, attribute(cache, 7, tokens=ids, method="heta", **options).scores)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_in_as_a_method(cache: Any, ids: Tensor, name: str) -> None:
    found = attribute(cache, 7, tokens=ids, method=Heta.preset(name, window=4 if name == "released" else 512))
    assert found.options["variant"] == PRESETS[name].get("variant", "full")
    for option, value in PRESETS[name].items():
        assert found.options[option] == value


def test_the_model_itself_runs_once_for_all_targets(model: Any, cache: Any, ids: Tensor, forwards: Any) -> None:
    runs = forwards(model)
    attribute(cache, position=N - 1, tokens=ids, variant="kl_only")
    last = len(runs)
    attribute_span(cache, 2, tokens=ids, variant="kl_only")
    assert len(runs) == 2 * last
