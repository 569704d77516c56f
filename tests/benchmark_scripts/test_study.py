"""The study: prompts whose gold is known, ranks without an order of equal scores, and the rule of the decision."""

from collections.abc import Mapping
from itertools import permutations
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import study_results
from benchmarks.ranks import by_chance, reciprocal_rank
from benchmarks.study import turns
from benchmarks.study_prompts import FAMILIES, FILES, KINDS, PUBLISHED, SPLITS, questions
from benchmarks.study_results import Drawn

# -------------------------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_a_family_have_gold_and_many_templates(family: str) -> None:
    templates = {split: {one.instance.template for one in questions(family, split)} for split in SPLITS}
    assert len(templates["test"]) >= 15 and len(templates["dev"]) >= 12
    assert not templates["dev"] & templates["test"]
    for split in SPLITS:
        for instance, wrong in questions(family, split):
            (eligible,) = instance.eligible
            assert len(instance.gold) == 1 and instance.answer is not None and instance.answer not in wrong
            assert eligible.start <= instance.gold[0].start and instance.gold[0].stop <= eligible.stop
            assert not set("{}<>") & set(instance.text) or FAMILIES[family]["kind"] in ("binding", "patterns")
            if FAMILIES[family]["kind"] in ("text", "binding", "chats"):
                assert instance.words("gold") == [instance.answer.strip()]
                assert instance.text[: eligible.stop].count(instance.answer.strip()) == 1
            if FAMILIES[family]["kind"] == "chats":
                assert instance.messages[-1]["role"] == "assistant"


def test_kinds_have_four_families_or_more() -> None:
    counts = pd.Series(KINDS).value_counts()
    assert len(counts) == 6 and counts.min() >= 4 and counts.sum() >= 24


@pytest.mark.skipif(not FILES.exists(), reason="published prompts are not in models/data")
@pytest.mark.parametrize("family", PUBLISHED)
def test_published_prompts_share_no_template_between_splits(family: str) -> None:
    dev, test = ({one.instance.template for one in questions(family, split)} for split in SPLITS)
    assert dev and test and not dev & test


def test_families_take_turns_until_enough_prompts_count() -> None:
    wrong = {("a", "dev", 0), ("b", "dev", 1), ("b", "dev", 2)}
    places = {("a", "dev"): (9, 2), ("b", "dev"): (3, 2), ("c", "dev"): (0, 2)}
    order = [*turns(places, lambda key: {"left out": "wrong"} if key in wrong else {})]
    assert order == [
        *[("a", "dev", 0, 0), ("a", "dev", 1, 0), ("b", "dev", 0, 0)],
        *[("a", "dev", 2, 1), ("b", "dev", 1, 1), ("b", "dev", 2, 1)],
    ]


# ---------------------------------------------------------------------------------------------------------------- ranks
def test_the_chance_of_a_rank_is_the_mean_over_all_orders() -> None:
    orders = [*permutations(range(6))]
    assert by_chance(6, 2) == pytest.approx(mean(1 / (1 + min(order.index(own) for own in (1, 3))) for order in orders))
    assert by_chance(3, 1, before=2) == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3)


def test_equal_scores_have_no_order() -> None:
    scores = torch.tensor([5.0, 1.0, 2.0, 1.0, 1.0, 9.0])
    assert reciprocal_rank(scores, {1, 3}, range(5)) == pytest.approx((1 / 3 + 1 / 3 + 1 / 4) / 3)
    assert reciprocal_rank(scores, {0}, range(5)) == 1


# --------------------------------------------------------------------------------------------------------------- scores
ROW: Mapping[str, Any] = {
    "visible": [1, 2, 3, 4], "eligible": [1, 2, 3], "gold": [2], "template": "one",
    "parts": {
        "gate": [0.5, 0.2, 0.1, 0.2], "squared gradient": [1.0, 9.0, 4.0, 0.0],
        "squared gradient, contrast": [4.0, 4.0, 4.0, 4.0],
        "squared gradient, others": [[1.0, 1.0, 4.0, 0.0], [3.0, 5.0, 4.0, 0.0]],
        "orig||masked": [4.0, 1.0, 0.0, 9.0], "masked||orig": [1.0, 1.0, 1.0, 1.0], "drop": [-0.5, 1.0, 0.2, 2.0],
        "drop, others": [[0.5, 0.0, 0.2, 3.0], [1.0, 1.0, 1.0, 2.0], [-1.0, 3.0, 1.0, 2.0]],
    },
    "effects": {"delete": [0.1, 0.9, -0.2], "resample": [[0.3, 0.2, -0.1], [0.3, 0.4, -0.3]],
                "mean": [1.0, 2.0, 3.0], "space": [0.0, 0.0, 0.0]},
    "scores": {"fast": [1.0, -2.0, 0.5, 0.0]},
    "seconds": {"zero": 2.0, "squared gradient": 1.0, "others": 8.0, "fast": 0.5, "mean": 3.0, "space": 3.0,
                "delete": 4.0, "resample": 30.0},
}  # fmt: skip


def test_settings_are_arithmetic_on_the_parts() -> None:
    found = study_results.scores_of(ROW)
    assert found["leave_one_out"].tolist() == [-0.5, 1.0, 0.2, 2.0]
    assert found["leave_one_out resample"][:3] == pytest.approx([0.3, 0.3, -0.2])
    assert np.isnan(found["leave_one_out mean"][3])
    assert found["√(G·I)"].tolist() == [2.0, 3.0, 0.0, 0.0]
    assert found["M · √(G·I)"] == pytest.approx([1.0, 0.6, 0.0, 0.0])
    assert found["√(G·|Δ|)"] == pytest.approx([-(0.5**0.5), 3.0, 0.8**0.5, 0.0])
    assert found["G/E"] == pytest.approx([0.5, 3.0, 1.0, 0.0])
    assert found["Δ − E"] == pytest.approx([-0.5, -1.0, -0.8, 0.0])
    assert found["Δ, contrast"] == pytest.approx([-1.0, 1.0, 0.0, -1.0])
    assert found["√(G·|Δ|), contrast"] == pytest.approx([-2.0, 2.0, 0.0, -2.0])
    assert "√(S·I)" not in found


def test_seconds_are_those_of_all_parts() -> None:
    seconds = {name: study_results.seconds_of(ROW, name) for name in study_results.scores_of(ROW)}
    assert seconds["fast"] == 0.5 and seconds["leave_one_out"] == 2 and seconds["leave_one_out mean"] == 3
    assert seconds["√(G·I)"] == 3 and seconds["I"] == 2 and seconds["M · G"] == 1 and seconds["√(G/E·I)"] == 11


def test_endpoints_of_a_prompt() -> None:
    found = study_results.measures(ROW, np.array([2.0, 3.0, 0.0, 9.0]))
    assert found["evidence"] == 1 and found["last first"] == 1
    chance = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert found["evidence, visible"] == pytest.approx((1 / 2 - chance) / (1 - chance))
    assert found["delete"] == pytest.approx(0.5) and found["sign, delete"] == 1
    assert found["for, delete"] == pytest.approx(2 / 3)
    below = study_results.measures(ROW, np.array([3.0, 2.0, 2.0, np.nan]))
    chance = (1 + 1 / 2 + 1 / 3) / 3
    assert below["evidence"] == pytest.approx(((1 / 2 + 1 / 3) / 2 - chance) / (1 - chance))
    assert np.isnan(below["evidence, visible"])


# ------------------------------------------------------------------------------------------------------------- decision
def frame_of(values: Mapping[str, list[float]], seconds: Mapping[str, float]) -> pd.DataFrame:
    """Return prompts of two kinds, the first with two families, whose evidence is given by prompt."""
    places = [("text", "a"), ("text", "a"), ("text", "b"), ("facts", "c"), ("facts", "c")]
    return pd.DataFrame(
        {"kind": kind, "family": family, "split": "dev", "number": number, "template": f"{number % 2}"}
        | {"setting": setting, "evidence": evidence[number], "seconds": seconds[setting]}
        for setting, evidence in values.items()
        for number, (kind, family) in enumerate(places)
    )


FRAME = frame_of(
    {"x": [1.0, 0.0, 0.5, 1.0, 1.0], "y": [0.5, 0.5, 1.0, 0.0, 0.5], "z": [0.5, 0.5, 0.4, 0.9, 0.9]},
    {"x": 5.0, "y": 1.0, "z": 2.0},
)


def test_families_weigh_the_same_in_a_kind_and_kinds_over_all() -> None:
    found = study_results.drawn(FRAME)
    assert found.kinds == ("text", "facts")
    assert found.of("x", "text").value == pytest.approx(0.5) and found.of("y", "text").value == pytest.approx(0.75)
    assert found.of("x").value == pytest.approx(0.75)
    assert found.difference("x", "y").value == pytest.approx(0.25) and found.prompts == 5 and found.templates == 5
    assert found.largest_regret[0] == pytest.approx([0.25, 0.75, 0.3])


def test_draws_keep_prompts_of_a_template_and_settings_together() -> None:
    frame = frame_of({"x": [1.0, 0.0, 0.5, 1.0, 0.0], "y": [0.0, -1.0, -0.5, 0.0, -1.0]}, {"x": 1.0, "y": 1.0})
    found = study_results.drawn(frame)
    assert found.apart("x", "y") == pytest.approx(np.ones(1 + study_results.RESAMPLED))
    assert {*np.unique(found.values[:, 0, 1])} == {0.0, 0.5, 1.0}


def test_the_cheapest_of_those_that_cannot_be_told_from_the_leader_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_results, "measured", lambda *_: FRAME)
    regrets = {"x": [0.1] * 9, "y": [0.4] * 9, "z": [0.2, *[0.05, 0.2] * 4]}
    values = 1 - np.stack([*regrets.values()], 1)[:, :, None]
    best = np.ones((9, 1, 1))
    own = Drawn((*regrets, "best of the kind"), ("text",), np.concatenate([values, best], 1), 9, 9)
    monkeypatch.setattr(study_results, "drawn", lambda *_: own)
    found = study_results.chosen(regrets.__contains__)
    assert (found.leader, found.equal, found.champion) == ("x", ("x", "z"), "z")


def test_a_champion_is_tested_against_its_rivals_on_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_results, "measured", lambda *_: FRAME)
    found = study_results.confirmation("x", ("x", "y", "z"))
    assert [(test.rival, test.model) for test in found] == [(r, m) for m in study_results.MODELS for r in ("y", "z")]
    by_rival = {test.rival: test for test in found}
    assert by_rival["z"].difference.value == pytest.approx(0.075) and 0 < by_rival["z"].p <= 1
