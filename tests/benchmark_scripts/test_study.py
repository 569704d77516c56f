"""The study: prompts whose gold is known, ranks without an order of equal scores, and the rule of the decision."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import study, study_results
from benchmarks.ranks import by_chance, reciprocal_rank
from benchmarks.study import turns
from benchmarks.study_prompts import FAMILIES, FILES, KINDS, PUBLISHED, SPLITS, SQUAD, facts_of, questions
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
            assert eligible.start == 0 and instance.gold[0].stop <= eligible.stop
            assert not set("{}<>") & set(instance.text) or FAMILIES[family]["kind"] in ("binding", "patterns")
            assert FAMILIES[family]["kind"] not in ("facts", "syntax", "patterns") or instance.gold[0].start > 14
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


def test_every_fourth_prompt_has_any_wording() -> None:
    every = [one.instance.template for one in questions("capitals", "test")]
    assert len({*every[:16]}) == 16 and len({*every[:64:4]}) > 8


def test_examples_have_both_labels() -> None:
    for instance, _ in questions("labels", "test"):
        assert "positive" in instance.text and "negative" in instance.text


def test_both_directions_of_a_pair_are_in_one_split() -> None:
    dev, test = ({frozenset(fact.split("/")) for fact in facts_of("opposites", split)} for split in SPLITS)
    assert dev and test and not dev & test


@pytest.mark.skipif(not FILES.exists(), reason="published prompts are not in models/data")
def test_a_question_about_a_paragraph_is_in_one_family_and_its_answer_once_in_the_text() -> None:
    of = {family: {one.instance.id for split in SPLITS for one in questions(family, split)} for family in SQUAD}
    assert all(map(len, of.values())) and not of[SQUAD[0]] & of[SQUAD[1]]
    for instance, _ in questions(SQUAD[1], "dev")[:20]:
        (eligible,) = instance.eligible
        words = re.findall(r"\w+", instance.text[: eligible.stop].lower())
        assert words.count(re.findall(r"\w+", str(instance.answer).lower())[0]) == 1


def test_families_take_turns_until_enough_prompts_count() -> None:
    wrong = {("a", "dev", 0), ("b", "dev", 1), ("b", "dev", 2)}
    places = {("a", "dev"): (9, 2), ("b", "dev"): (3, 2), ("c", "dev"): (0, 2)}
    order = [*turns(places, lambda key: {"left out": "wrong"} if key in wrong else {})]
    assert order == [
        *[("a", "dev", 0, 0), ("a", "dev", 1, 0), ("b", "dev", 0, 0)],
        *[("a", "dev", 2, 1), ("b", "dev", 1, 1), ("b", "dev", 2, 1)],
    ]


# ---------------------------------------------------------------------------------------------------------------- ranks
def test_some_turns_have_more_measurements() -> None:
    found = [study.turn_of(family, nth, 60) for nth in range(8) for family in FAMILIES]
    assert found.count(study.EIGHTH) == found.count(study.FOURTH) == len(FAMILIES)
    long = [study.turn_of("squad_paragraph", nth, 90) for nth in range(16)]
    assert long.count(study.FOURTH) == 2 and study.EIGHTH not in long
    for model, each in study.ALONE.items():
        alone = [study.heta_alone(model, family, "test", nth, 60) for nth in range(8) for family in FAMILIES]
        assert sum(alone) == len(FAMILIES) * (8 // each - 1)
        assert not any(one and turn == study.EIGHTH for one, turn in zip(alone, found, strict=True))


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
    "visible": [1, 2, 3, 4], "eligible": [1, 2, 3], "gold": [2], "copies": [2, 4], "template": "one",
    "others": ["runner-up", "drawn 0", "drawn 1"],
    "parts": {
        "gate": [0.5, 0.2, 0.1, 0.2], "squared gradient": [1.0, 9.0, 4.0, 0.0],
        "squared gradient, contrast": {"runner-up": [4.0, 4.0, 4.0, 4.0]},
        "squared gradient, others": [[1.0, 1.0, 4.0, 0.0], [3.0, 5.0, 4.0, 0.0]],
        "orig||masked": [4.0, 1.0, 0.0, 9.0], "masked||orig": [1.0, 1.0, 1.0, 1.0], "drop": [-0.5, 1.0, 0.2, 2.0],
        "drop, others": [[0.5, 0.0, 0.2, 3.0], [1.0, 1.0, 1.0, 2.0], [-1.0, 3.0, 1.0, 2.0]],
    },
    "effects": {"delete": [0.1, 0.9, -0.2], "resample": [[0.3, 0.2, -0.1], [0.3, 0.4, -0.3]],
                "mean": [1.0, 2.0, 3.0], "space": [0.0, 0.0, 0.0]},
    "scores": {"fast": [1.0, -2.0, 0.5, 0.0]},
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
    assert found["√(G/E·|Δ|/E)"] == pytest.approx([-(0.25**0.5), 1.5**0.5, (0.2 / 1.0) ** 0.5, 0.0])
    assert found["Δ, runner-up"] == pytest.approx([-1.0, 1.0, 0.0, -1.0])
    assert found["√(G·|Δ|), runner-up"] == pytest.approx([-2.0, 2.0, 0.0, -2.0])
    assert found["gradient_norm"].tolist() == [1.0, 3.0, 2.0, 0.0] and found["primacy"].tolist() == [0, -1, -2, -3]
    assert found["copy"].tolist() == [0, 1, 0, 1]
    assert "√(S·I)" not in found and "Δ, wrong form" not in found


def test_settings_are_those_of_the_protocol() -> None:
    protocol = Path(study_results.__file__).with_name("STUDY.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in protocol for name in (*study_results.scores_of(ROW), *study.ALWAYS, *study.SLOWER))


def test_endpoints_of_a_prompt() -> None:
    found = study_results.measures(ROW, np.array([2.0, 3.0, 0.0, 9.0]))
    assert found["evidence"] == found["room, evidence"] == pytest.approx(1 - (1 + 1 / 2 + 1 / 3) / 3)
    assert found["last first"] == 1
    chance = (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert found["evidence, visible"] == pytest.approx(1 / 2 - chance)
    assert found["room, evidence, visible"] == pytest.approx(1 - chance)
    assert found["delete"] == pytest.approx(0.5)
    assert found["sign, delete"] == pytest.approx(2 / 3)  # a score of 0 has no sign
    assert found["for, delete"] == pytest.approx(2 / 3)
    below = study_results.measures(ROW, np.array([3.0, 2.0, 2.0, np.nan]))
    chance = (1 + 1 / 2 + 1 / 3) / 3
    assert below["evidence"] == pytest.approx((1 / 2 + 1 / 3) / 2 - chance)
    assert np.isnan(below["evidence, visible"])


# ------------------------------------------------------------------------------------------------------------- decision
def frame_of(values: Mapping[str, list[float]], room: float = 1.0) -> pd.DataFrame:
    """Return prompts of two kinds, the first with two families, whose evidence is given by prompt."""
    places = [("text", "a"), ("text", "a"), ("text", "b"), ("facts", "c"), ("facts", "c")]
    return pd.DataFrame(
        {"kind": kind, "family": family, "split": "dev", "number": number, "template": f"{number % 2}"}
        | {"setting": setting, "evidence": evidence[number], "room, evidence": room}
        for setting, evidence in values.items()
        for number, (kind, family) in enumerate(places)
    )


FRAME = frame_of(
    {"x": [1.0, 0.0, 0.5, 1.0, 1.0], "y": [0.5, 0.5, 1.0, 0.0, 0.5], "z": [0.5, 0.5, 0.4, 0.9, 0.9]},
)


def test_families_weigh_the_same_in_a_kind_and_kinds_over_all() -> None:
    found = study_results.drawn(FRAME)
    assert found.kinds == ("text", "facts")
    assert found.of("x", "text").value == pytest.approx(0.5) and found.of("y", "text").value == pytest.approx(0.75)
    assert found.of("x").value == pytest.approx(0.75)
    assert found.difference("x", "y").value == pytest.approx(0.25) and found.prompts == 5 and found.templates == 5
    assert found.largest_regret[0] == pytest.approx([0.25, 0.75, 0.3])


def test_draws_keep_prompts_of_a_template_and_settings_together() -> None:
    frame = frame_of({"x": [1.0, 0.0, 0.5, 1.0, 0.0], "y": [0.0, -1.0, -0.5, 0.0, -1.0]})
    found = study_results.drawn(frame)
    assert found.apart("x", "y") == pytest.approx(np.ones(1 + study_results.RESAMPLED))
    assert {*np.unique(found.values[:, 0, 1])} == {0.0, 0.5, 1.0}


def test_evidence_is_a_share_of_what_a_random_order_leaves() -> None:
    frame = frame_of({"x": [0.5, 0.0, 0.25, 0.5, 0.5]}, room=0.5)
    assert study_results.drawn(frame).of("x").value == pytest.approx((0.5 + 1) / 2)


def test_families_of_one_template_have_no_interval() -> None:
    own = Drawn(("x",), ("text", "facts"), np.arange(12.0).reshape(6, 1, 2), 9, 8, 20, ("text", "text"))
    assert np.isnan(own.of("x", "text").low) and own.of("x", "facts").low < own.of("x", "facts").high
    assert own.of("x").low < own.of("x").high  # a tenth of all families
    assert np.isnan(replace(own, single=("text",) * 3).of("x").high)


def test_one_pass_is_chosen_if_it_is_as_good_as_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    regrets = {"x": [0.1] * 9, "gim": [0.4] * 9, "fast": [0.14, *[0.05, 0.2] * 4], "z": [0.12, *[0.05, 0.2] * 4]}
    frame = frame_of({name: [0.0] * 5 for name in ("random", "lime", *regrets)})
    monkeypatch.setattr(study_results, "measured", lambda *_: frame)
    values = 1 - np.stack([*regrets.values()], 1)[:, :, None]
    own = Drawn((*regrets, "best of the kind"), ("text",), np.concatenate([values, np.ones((9, 1, 1))], 1), 9, 9, 1)
    monkeypatch.setattr(study_results, "drawn", lambda *_: own)
    own.__dict__["largest_regret"] = np.concatenate([own.largest_regret[:, :4], np.full((9, 1), 9.0)], 1)
    found = study_results.chosen()
    assert (found.leader, found.equal, found.champion) == ("x", ("x", "fast", "z"), "fast")
    assert found.left_out == ("lime",)


def test_a_champion_is_tested_against_its_rivals_on_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_results, "measured", lambda *_: FRAME)
    found = study_results.confirmation("x", ("x", "y", "z"))
    assert [(test.rival, test.model) for test in found] == [(r, m) for m in study_results.MODELS for r in ("y", "z")]
    by_rival = {test.rival: test for test in found}
    assert by_rival["z"].difference.value == pytest.approx(0.075) and 0 < by_rival["z"].p <= 1
