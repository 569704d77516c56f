"""The contract of an attribution: five lines that are true of what was asked."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, hooked, missing
from helpers.evaluating import demo
from heta_lens import METHODS, Attribution, activation, attribute, attribute_span
from heta_lens.methods.contract import FIXED, UNITS

pytestmark = pytest.mark.both_lines

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def asked(target: Any = None, **options: Any) -> Attribution:
    ids = demo().to_tokens(TEXT)
    return attribute(cache_of(demo(), ids), target, tokens=ids, **options)


def test_five_lines_say_what_is_claimed() -> None:
    found = asked(method="leave_one_out", effect="log_prob", mask="mean").contract()
    assert found.explained == "the next token after 30 tokens: ' drawer'"
    assert found.eligible.startswith("all 30 tokens before it")
    assert re.search(
        r"by (heta_lens demo|demo_model) \(\w+, 6 layers, weights [0-9a-f]{8}\), with no hooks of the user",
        found.process,
    )
    assert "tokens that are left as they are" in found.fixed
    assert not missing(
        ["leave_one_out: ", "g(X with i masked)", "effect='log_prob', mask='mean'", "in nats", "without error"],
        found.score,
    )
    assert [line.split()[0] for line in repr(found).splitlines()] == [*found._fields]


@pytest.mark.parametrize(
    ("options", "unit"),
    [
        ({"method": "fast"}, "in logits"),
        ({"method": "leave_one_out"}, "in nats"),
        ({"method": "input_x_gradient", "scale": "prob"}, "in probability"),
        ({"method": "gradient_norm"}, "without a unit"),
        ({}, "without a unit"),
        ({"target": activation("blocks.2.mlp.hook_post", index=5), "method": "input_x_gradient"}, "without a unit"),
    ],
    ids=str,
)
def test_units(options: dict[str, Any], unit: str) -> None:
    assert unit in asked(**options).contract().score


def test_hetas_score_is_its_formula_with_its_error() -> None:
    assert not missing(["heta: score = gate × (0.5", "± one standard error"], asked(probes=3).contract().score)
    assert "blocks.2.mlp.hook_post[5]" in asked(activation("blocks.2.mlp.hook_post", index=5)).contract().explained


def test_a_span_sums_its_targets_and_a_function_is_the_users() -> None:
    ids = demo().to_tokens(TEXT)
    span = attribute_span(cache_of(demo(), ids), -3, tokens=ids, method="fast").contract()
    assert not missing(["3 tokens", "added up"], span.explained) and "6 layers, weights" in span.process
    own = asked(method=lambda prediction: torch.ones(len(prediction))).contract()
    assert "a function of yours" in own.score and own.fixed == "not known of this method"


def test_a_span_of_the_users_numbers_has_no_unit_and_hetas_is_its_formula() -> None:
    ids = demo().to_tokens(TEXT)
    neuron = activation("blocks.2.mlp.hook_post", index=5)
    for target in (neuron, torch.Tensor.max):
        found = attribute_span(cache_of(demo(), ids), -2, targets=target, tokens=ids, method="fast").contract()
        assert "without a unit" in found.score and "at 2 tokens of the text" in found.explained
    assert asked(neuron, method="fast").contract().process.startswith("an activation of ")
    span = attribute_span(cache_of(demo(), ids), -2, tokens=ids, probes=2).contract()
    assert span.score.startswith("heta: score = gate × (0.5 ×")


def test_what_is_left_out_for_display_was_there() -> None:
    found = asked(method="fast").without([5, 6]).contract()
    assert found.explained.startswith("the next token after 30 tokens")
    assert found.eligible == "all 30 tokens before it, special tokens too; left out for display: 2"


def test_tokens_that_a_method_keeps_are_not_eligible() -> None:
    assert "but the first, which the method keeps" in asked(method="integrated_gradients", steps=3).contract().eligible
    found = asked(method="attribot").contract()
    assert found.eligible.startswith("25 of the 30 tokens before it, which share the scores of 3 sources")
    assert "special tokens too" in asked(method="progressive_inference").contract().eligible


def test_the_definition_is_a_whole_sentence_and_names_the_scale() -> None:
    for method in METHODS.values():
        (_, definition, *_) = (method.__doc__ or "").split("\n\n")
        assert definition.rstrip().endswith("."), method.name
    assert "; scale='log_prob'; in nats" in asked(method="input_x_gradient").contract().score
    assert "; effect='kl'; in nats" in asked(method="leave_one_out").contract().score


def test_the_name_of_a_method_in_a_file_is_not_imported() -> None:
    found = replace(asked(method="fast"), method="no_such_module:method")
    assert found.contract().fixed == "not known of this method"


def test_hooks_and_other_weights_are_another_process() -> None:
    model = zoo.bridge.__wrapped__("gpt2")  # a new one
    ids = zoo.prompt(model, 5)
    before = attribute(cache_of(model, ids), 7, tokens=ids, method="gradient_norm").contract().process
    with torch.no_grad():
        next(model.parameters()).mul_(1.01)
    with hooked(model, ("blocks.0.hook_resid_post", lambda state, hook: state * 1.5)):  # noqa: ARG005
        after = attribute(cache_of(model, ids), 7, tokens=ids, method="gradient_norm").contract().process
    assert "no hooks" in before and "1 hook of the user" in after
    assert len({re.search("weights ([0-9a-f]+)", each)[1] for each in (before, after)}) == 2  # type: ignore[index]


def test_it_is_kept_in_files_and_exports_and_stands_on_the_page(tmp_path: Path) -> None:
    found = asked(method="fast")
    found.save(tmp_path / "a.safetensors")
    assert Attribution.load(tmp_path / "a.safetensors").contract() == found.contract()
    document = json.loads(found.plot().save(tmp_path / "a.json").read_text())
    assert document["contract"] == found.contract()._asdict()
    assert found.contract().fixed in found.plot().page


def test_every_method_says_what_it_holds_fixed() -> None:
    for method in METHODS.values():
        assert method.fixed or method.family in FIXED, method.name
        assert not method.unit or method.unit in UNITS.values(), method.name
    assert heta_lens.Heta.fixed


def test_a_function_with_a_methods_name_has_not_its_contract() -> None:
    def random(prediction: heta_lens.Prediction) -> torch.Tensor:
        return torch.ones(len(prediction))

    found = asked(method=random)
    found = replace(found, method="random")
    assert "a function of yours" in found.contract().score
