"""ReAGent against a plain loop over probes, and its replacements of tokens."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain_logits, predict, relative
from heta_lens.methods import reagent
from heta_lens.methods.reagent import Reagent, kind, same_kind

N, TARGET = 8, 7
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def other_token(tokens: Tensor, generator: np.random.Generator) -> Tensor:
    """The one after it, most of the time."""
    return (tokens + 1 + torch.from_numpy(generator.integers(0, 3, len(tokens)))) % 90 + 5


def plain_reagent(model: Any, ids: Tensor, target: int, options: dict[str, Any]) -> dict[str, Any]:
    """One probe after the other, each with its own source of chance."""
    context, n = ids[0], ids.shape[1]
    whole = float(plain_logits(model, ids)[-1].softmax(-1)[target])
    shares, stopped = [], []
    for number in range(options["probes"]):
        generator = np.random.default_rng([0, number, *context.tolist()])
        belief, enough, taken = list(generator.random(n)), False, 0
        while not enough and taken < options["max_steps"]:
            taken += 1
            mask = generator.random(n) < options["rate"]
            while not any(mask):
                mask = generator.random(n) < options["rate"]
            other = context.clone()
            at = torch.tensor([place for place in range(n) if mask[place]])
            other[at] = other_token(context[at], generator)
            drop = whole - float(plain_logits(model, other[None])[-1].softmax(-1)[target])
            for place in range(n):
                change = drop if mask[place] else -drop
                belief[place] += math.log((1 + change) / (1 - change))
            order = sorted(range(n), key=lambda place: -belief[place])
            other, at = context.clone(), torch.tensor(sorted(order[options["top"] :]))
            other[at] = other_token(context[at], generator)
            enough = target in plain_logits(model, other[None])[-1].topk(options["tolerance"]).indices.tolist()
        sizes = [math.exp(one) for one in belief]
        shares.append([size / sum(sizes) for size in sizes])
        stopped.append(enough)
    counted = [share for share, enough in zip(shares, stopped, strict=True) if enough or not any(stopped)]
    votes = Counter(
        place for share in counted for place in sorted(range(n), key=lambda at: -share[at])[: options["top"]]
    )
    return {
        "scores": torch.tensor(counted, dtype=torch.float64).mean(0),
        "stopped": sum(stopped),
        "rationale": sorted(place for place, count in votes.items() if count >= min(2, len(counted))),
    }


@FAMILIES
def test_reagent_is_the_mean_of_probes_that_stopped(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reagent, "same_kind", lambda _: other_token)
    model = build()
    ids = zoo.prompt(model, N)
    options = {"top": 3, "tolerance": 3, "rate": 0.3, "probes": 3, "max_steps": 5}
    for target in (int(plain_logits(model, ids)[-1].argmax()), TARGET):
        found = Reagent(**options)(predict(model, ids, target))
        expected = plain_reagent(model, ids, target, options)
        assert relative(found.scores, expected["scores"]) < 1e-6
        assert {name: found.diagnostics[name] for name in ("stopped", "rationale")} == {
            name: expected[name] for name in ("stopped", "rationale")
        }


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_any_token_of_the_same_kind_may_replace_one(build: Callable[..., Any]) -> None:
    model = build()
    tokenizer = model.tokenizer
    asked = predict(model, zoo.prompt(model, N), TARGET)
    replacer, generator = same_kind(asked), np.random.default_rng(0)
    for text in (" cat", "at", ",", " "):
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        many = torch.full((500,), token)
        written = {tokenizer.decode([other]) for other in replacer(many, generator).tolist()}
        every = [tokenizer.decode([other]) for other in range(4, model.cfg.d_vocab)]
        assert written == {other for other in every if kind(other) == kind(text)}, text
    begins = torch.full((1500,), tokenizer.bos_token_id)
    found = Counter(replacer(begins, generator).tolist())
    assert sorted(found) == list(range(4, model.cfg.d_vocab)) and max(found.values()) < 50
