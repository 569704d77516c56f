"""The contract of an attribution: five lines that are true of what was asked."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, hooked, missing
from helpers.evaluating import demo
from heta_lens import METHODS, Attribution, activation, attribute, attribute_span
from heta_lens.methods.base import Method, Scores, Work
from heta_lens.methods.contract import FIXED, UNITS
from heta_lens.prediction.prediction import Prediction

pytestmark = pytest.mark.both_lines
TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def asked(target: Any = None, **options: Any) -> Attribution:
    ids = demo().to_tokens(TEXT)
    return attribute(cache_of(demo(), ids), target, tokens=ids, **options)


LEFT_OUT: dict[str, Any] = {"method": "leave_one_out", "mask": "mean"}
NEURON: Any = activation("blocks.2.mlp.hook_post", index=5)
LINES: list[tuple[dict[str, Any], str, list[str]]] = [
    (LEFT_OUT, "explained", ["the next token after 30 tokens: ' drawer'"]),
    (LEFT_OUT, "eligible", ["all 30 tokens before it"]),
    (LEFT_OUT, "process", ["demo", "6 layers, weights ", ", with no hooks of the user"]),
    (LEFT_OUT, "fixed", ["tokens that are left as they are"]),
    (LEFT_OUT, "score", ["leave_one_out: ", "g(X with i masked)", "effect='log_prob', mask='mean'", "without error"]),
    (LEFT_OUT, "score", ["in nats"]),
    ({"method": "leave_one_out", "effect": "kl"}, "score", ["; effect='kl'; in nats"]),
    ({"method": "fast"}, "score", ["in logits"]),
    ({"method": "input_x_gradient"}, "score", ["; scale='log_prob'; in nats"]),
    ({"method": "input_x_gradient", "scale": "prob"}, "score", ["in probability"]),
    ({"method": "gradient_norm"}, "score", ["without a unit"]),
    ({"target": NEURON, "method": "input_x_gradient"}, "score", ["without a unit"]),
    ({"probes": 3}, "score", ["heta: score = gate × (0.5", "± one standard error", "without a unit"]),
    ({"target": NEURON}, "explained", ["blocks.2.mlp.hook_post[5]"]),
    ({"target": NEURON, "method": "fast"}, "process", ["an activation of "]),
    ({"method": "integrated_gradients", "steps": 3}, "eligible", ["but the first, which the method keeps"]),
    ({"method": "attribot"}, "eligible", ["25 of the 30 tokens before it, which share the scores of 3 sources"]),
    ({"method": "progressive_inference"}, "eligible", ["special tokens too"]),
]


@pytest.mark.parametrize(("options", "line", "words"), LINES, ids=str)
def test_a_line_says_what_is_claimed(options: dict[str, Any], line: str, words: list[str]) -> None:
    found = asked(**options).contract()
    assert not missing(words, getattr(found, line))
    assert [each.split()[0] for each in repr(found).splitlines()] == [*found._fields]


def test_a_span_sums_its_targets_and_has_no_unit_of_a_users_numbers() -> None:
    ids = demo().to_tokens(TEXT)
    span = attribute_span(cache_of(demo(), ids), -3, tokens=ids, method="fast").contract()
    assert not missing(["3 tokens", "added up"], span.explained) and "6 layers, weights" in span.process
    for target in (NEURON, torch.Tensor.max):
        found = attribute_span(cache_of(demo(), ids), -2, targets=target, tokens=ids, method="fast").contract()
        assert "without a unit" in found.score and "at 2 tokens of the text" in found.explained
    span = attribute_span(cache_of(demo(), ids), -2, tokens=ids, probes=2).contract()
    assert span.score.startswith("heta: score = gate × (0.5 ×")


def test_what_is_left_out_for_display_was_there() -> None:
    found = asked(method="fast").without([5, 6]).contract()
    assert found.explained.startswith("the next token after 30 tokens")
    assert found.eligible == "all 30 tokens before it, special tokens too; left out for display: 2"


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


def test_every_method_says_what_it_holds_fixed_and_has_a_definition() -> None:
    for method in METHODS.values():
        assert method.fixed or method.family in FIXED, method.name
        assert not method.unit or method.unit in UNITS.values(), method.name
        (_, definition, *_) = (method.__doc__ or "").split("\n\n")
        assert definition.rstrip().endswith("."), method.name


def test_a_function_has_no_contract_even_with_a_methods_name() -> None:
    def random(prediction: heta_lens.Prediction) -> torch.Tensor:
        return torch.ones(len(prediction))

    found = asked(method=random)
    for named in (found, replace(found, method="random")):
        assert "a function of yours" in named.contract().score
    assert found.contract().fixed == "not known of this method"


def test_a_class_that_is_not_registered_says_what_its_scores_are() -> None:
    @dataclass(frozen=True, eq=False, kw_only=True)
    class Length(Method):
        """The length of a token.

        ``a_i = letters(i)``, which no model changes.
        """

        name: ClassVar = "length_of_this_test"
        family: ClassVar = "control"
        cost: ClassVar = "nothing"

        def work(self, prediction: Prediction) -> Work:  # noqa: ARG002
            return Work()

        def explain(self, prediction: Prediction) -> Scores:
            return Scores(prediction.ids.double())

    found = asked(method=Length()).contract()
    assert found.score.startswith("length_of_this_test: a_i = letters(i), which no model changes; ")
    assert found.fixed == FIXED["control"]
