"""Leave-one-out against one plain run per token, and captum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, predict, relative
from helpers.gradients import TARGET, N, with_row
from heta_lens import activation
from heta_lens.methods.leave_one_out import LeaveOneOut

MODEL = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


@MODEL
def test_leaving_one_out_is_one_plain_run_each(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean = log_probs(embeddings).detach()
    asked = predict(model, ids, TARGET)
    kl, drop = (LeaveOneOut(effect=effect, mask="mean")(asked).scores for effect in ("kl", "log_prob"))
    left = [log_probs(with_row(embeddings, place, embeddings.mean(0))).detach() for place in range(N)]
    assert relative(kl, torch.stack([(clean.exp() * (clean - one)).sum() for one in left])) < 1e-6
    assert relative(drop, torch.stack([(clean - one)[TARGET] for one in left])) < 1e-6


@pytest.mark.parametrize(
    "target",
    [activation("blocks.0.hook_resid_post", index=1), lambda logits: logits[2]],
    ids=["activation", "function"],
)
def test_the_effect_on_a_number_is_not_called_a_log_probability(target: Any) -> None:
    model = zoo.bridge("gpt2")
    found = explain(model, zoo.prompt(model, N), target, method="leave_one_out")
    assert found.options["effect"] == "log_prob"  # which the method takes again
    assert "log_prob" not in found.title + found.contract().score


def test_leaving_one_out_has_a_direction_only_where_it_looks_at_the_target() -> None:
    asked = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N), TARGET)
    assert LeaveOneOut()(asked).signed and not LeaveOneOut(effect="kl")(asked).signed
