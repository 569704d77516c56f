"""ReAGent against a plain loop over probes."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import doubts_allowed, predict, relative
from helpers.replacements import TARGET, N, hooked_up, on_bridge, plain_logits
from heta_lens.methods.reagent import Probe, Reagent, aggregated, best, evidence, random_mask

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def other_token(ids: Tensor, positions: Tensor, generator: np.random.Generator) -> Tensor:
    """The one after it, most of the time."""
    return (ids[positions] + 1 + torch.from_numpy(generator.integers(0, 3, len(positions)))) % 90 + 5


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
            other[at] = other_token(context, at, generator)
            drop = whole - float(plain_logits(model, other[None])[-1].softmax(-1)[target])
            for place in range(n):
                change = drop if mask[place] else -drop
                belief[place] += math.log((1 + change) / (1 - change))
            order = sorted(range(n), key=lambda place: -belief[place])
            other, at = context.clone(), torch.tensor(sorted(order[options["top"] :]))
            other[at] = other_token(context, at, generator)
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
def test_reagent_is_the_mean_of_probes_that_stopped(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    options = {"top": 3, "tolerance": 3, "rate": 0.3, "probes": 3, "max_steps": 5}
    for target in (int(plain_logits(model, ids)[-1].argmax()), TARGET):
        found = Reagent(replacer=other_token, **options)(predict(model, ids, target))
        expected = plain_reagent(model, ids, target, options)
        assert relative(found.scores, expected["scores"]) < 1e-6
        assert {name: found.diagnostics[name] for name in ("stopped", "rationale")} == {
            name: expected[name] for name in ("stopped", "rationale")
        }
        assert "other_token" in found.options["replacer"]


def test_the_worked_example_of_reagent() -> None:
    belief = evidence(torch.tensor(0.3, dtype=torch.float64), torch.tensor([True, False, True]))
    assert belief.tolist() == pytest.approx([0.61904, -0.61904, 0.61904], abs=1e-5)
    assert belief.softmax(0).tolist() == pytest.approx([0.43669, 0.12661, 0.43669], abs=1e-5)
    sure = evidence(torch.tensor(1.0, dtype=torch.float64), torch.tensor([True, False]))
    assert sure.tolist() == pytest.approx([math.log(1e6), -math.log(1e6)], rel=1e-6)


def test_what_reagent_is_made_of() -> None:
    generator = np.random.default_rng(0)
    assert all(random_mask(generator, 2, 0.01).any() for _ in range(20))
    assert abs(torch.stack([random_mask(generator, 50, 0.3) for _ in range(200)]).double().mean() - 0.3) < 0.02
    assert best(torch.tensor([0.1, 0.3, 0.2]), 2).tolist() == [False, True, True]
    asked = on_bridge()
    probes = [Probe(generator, torch.tensor(row, dtype=torch.float64)) for row in ([0.0, 1.0], [0.0, 3.0], [5.0, 0.0])]
    with pytest.warns(UserWarning, match="none of 3 probes found 1 tokens that suffice: raise top, tolerance or"):
        every = aggregated(probes, 1, asked)
    assert every.diagnostics == {"stopped": 0, "rationale": [1]}
    assert every.scores.tolist() == pytest.approx(
        torch.stack([one.belief.softmax(0) for one in probes]).mean(0).tolist()
    )
    probes[2].stopped = True
    stopped = aggregated(probes, 1, asked)
    assert stopped.diagnostics == {"stopped": 1, "rationale": [0]}
    assert stopped.scores.tolist() == pytest.approx(probes[2].belief.softmax(0).tolist())


def test_options_of_reagent_do_something() -> None:
    asked, never = on_bridge(), {"probes": 3, "max_steps": 4, "tolerance": 1}
    plain = Reagent(**never)(asked)
    assert (
        plain.diagnostics["stopped"] == 0
        and plain.diagnostics["forwards"] == 24 == Reagent(**never).work(asked)["forwards"]
    )
    for change in ({"rate": 0.7}, {"probes": 4}, {"max_steps": 2}, {"replacer": "lm"}, {"seed": 1}, {"tolerance": 99}):
        assert relative(Reagent(**never | change)(asked).scores, plain.scores) > 1e-3, change
    assert relative(Reagent(**never, batch=1)(asked).scores, plain.scores) < 1e-9
    rank = plain.diagnostics["target_rank"]
    with doubts_allowed():
        enough, short = (Reagent(**never | {"tolerance": rank - less, "top": N})(asked).diagnostics for less in (0, 1))
    assert (enough["stopped"], enough["forwards"], enough["rationale"]) == (3, 6, [*range(N)])
    assert (short["stopped"], short["forwards"]) == (0, 24)
    assert len(Reagent(**never | {"top": 1})(asked).diagnostics["rationale"]) <= 1
    likely = Reagent(**never | {"replacer": "lm"})
    assert likely(asked).diagnostics["forwards"] == likely.work(asked)["forwards"] == 25


def test_reagent_warns_when_all_tokens_are_enough() -> None:
    asked = on_bridge()
    rank = int((asked.log_probs > asked.log_probs[TARGET]).sum()) + 1
    with pytest.warns(UserWarning, match=f"the top=9 tokens that suffice are all {N} there are"):
        found = Reagent(top=9, tolerance=rank)(asked)
    assert found.diagnostics["stopped"] == 8 and found.diagnostics["rationale"] == [*range(N)]


def test_what_reagent_refuses() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match="'reagent' explains one token, and cannot contrast"):
        Reagent()(predict(model, ids, (TARGET, 30)))
    with pytest.raises(ValueError, match="rate=1 must be below 1"):
        Reagent(rate=1)
    for given, message in {
        (-1,): "ids are whole numbers from 0 to",
        (1.5,): "ids are whole numbers from 0 to",
        (10**7,): "ids are whole numbers from 0 to",
        ("a",): "which are not ids",
    }.items():
        with pytest.raises(ValueError, match=f"the replacer gave .*{message}"):
            Reagent(replacer=lambda ids, positions, generator, given=given: [*given] * len(positions))(on_bridge())  # noqa: ARG005
    with pytest.raises(ValueError, match=r"the replacer gave ids of shape \(1,\) for"):
        Reagent(replacer=lambda ids, positions, generator: [3], rate=0.99)(on_bridge())  # noqa: ARG005
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match="'reagent' runs other tokens, which hooks on the model"):
            Reagent()(asked)
    finally:
        model.reset_hooks()
