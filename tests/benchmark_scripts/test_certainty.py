"""Predictions made more or less certain: what the curvature's share of the score is then."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
from benchmarks.study import certainty
from benchmarks.study.families import FAMILIES, Case


@cache
def case() -> Case:
    return next(FAMILIES["contest"].cases("contest", "test", 1))


@cache
def outcome() -> dict[str, Any]:
    return certainty.outcome(case())


@pytest.mark.slow
def test_the_same_prompt_is_predicted_with_more_certainty() -> None:
    found = [one["p"] for one in outcome()["factors"]]
    assert found == sorted(found) and found[0] < 0.9 < found[-1]
    clean = float(case().prediction.log_probs.max().exp())
    assert found[certainty.FACTORS.index(1.0)] == pytest.approx(clean, rel=1e-4)


def test_as_it_is_the_share_is_the_diagnostics() -> None:
    plain = heta_lens.Heta(progress=False)(case().prediction)
    own = outcome()["factors"][certainty.FACTORS.index(1.0)]
    assert own["share"] == pytest.approx(plain.diagnostics.share["curvature"], rel=1e-2)
    assert len(own["mass"]) == len(own["correlation"]) == len(certainty.WAYS)


def test_logits_are_multiplied() -> None:
    logits = torch.tensor([1.0, 2.0, 4.0])
    assert float(certainty.log_prob(2.0, 1, logits)) == pytest.approx(float((2 * logits).log_softmax(-1)[1]))


def test_bands_without_enough_prompts_are_not_drawn() -> None:
    doubt = np.array([0.5] * 6 + [0.05] * 4)
    centres, means = certainty.by_band(doubt, np.arange(10.0))
    assert centres.tolist() == pytest.approx([10**-0.5]) and means.tolist() == [2.5]


def test_the_page_says_where_the_information_alone_is_nearer_to_the_evidence() -> None:
    masses = {0.3: 0.5, 0.95: 0.1, 1.0: 0.3}
    measured = [{"p": p, "mass": (0.0, information, 0.3, 0.0)} for p, information in masses.items()]
    assert certainty.gains(measured) == (
        "With `kl_only`, the mass on the evidence is larger than with the sum at p 0–0.5 and smaller than with the sum "
        "at p 0.9–0.99."
    )
    assert certainty.gains(measured[2:]).endswith("the same at every p.")
