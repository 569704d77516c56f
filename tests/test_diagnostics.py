"""What is known beside the scores: typed, and a read-only mapping; standard errors, shares and agreement, by hand."""

import math
from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from heta_lens._util.numerics import Samples
from heta_lens.diagnostics import Cost, Diagnostics, agreement, rank_correlation, sink_mass, standard_error, term_shares
from heta_lens.methods.heta.probes import rademacher

KNOWN = {
    "sink_mass": 0.5,
    "forwards": 7,
    "seconds": 0.25,
    "effects": torch.ones(2, 3),
    "share": {"curvature": 1.0},
}


def test_it_is_the_mapping_that_it_was_made_of() -> None:
    known = Diagnostics.of(KNOWN)
    assert (known.sink_mass, known.share) == (0.5, {"curvature": 1.0})
    assert known.cost == Cost(forwards=7, seconds=0.25) and known.of_method.keys() == {"effects"}
    assert known.keys() == KNOWN.keys()
    assert len(known) == len(KNOWN)
    assert all(known[name] is value for name, value in KNOWN.items())
    assert Diagnostics.of(known).keys() == known.keys()


def test_what_is_not_known_is_none_and_not_in_the_mapping() -> None:
    known = Diagnostics.of({"balanced": None, "sink_mass": 0.0})
    assert known.balanced is known.cost.hvps is known.get("balanced") is None
    assert list(known) == ["sink_mass"]
    with pytest.raises(KeyError, match="'balanced' is not known of these scores, only sink_mass"):
        known["balanced"]


@pytest.mark.parametrize(
    ("method", "options"),
    [("heta", {"balance": "sum"}), ("leave_one_out", {}), ("integrated_gradients", {}), ("random", {})],
)
def test_the_fields_of_an_attribution_are_what_its_mapping_says(method: str, options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    _, cache = model.run_with_cache(ids)
    known = heta_lens.attribute(cache, tokens=ids, method=method, **options).diagnostics
    assert known.cost.forwards == known["forwards"]
    assert known.cost.seconds == known["seconds"] > 0
    assert known.sink_mass == known["sink_mass"]
    assert known.target_rank == known["target_rank"] == 1
    assert (known.standard_errors is not None) == (method == "heta")
    assert all(known[name] is not None for name in known)


def test_the_standard_error_of_a_mean_is_the_textbooks() -> None:
    samples = rademacher(0, 0, 5, 6).cumsum(0)
    error = standard_error(Samples.even(samples), lambda mean: 3 * mean)
    torch.testing.assert_close(error, 3 * samples.std(0) / 5**0.5)
    assert samples.std(0).any()


def test_samples_of_single_probes_have_no_standard_error() -> None:
    one, uneven = Samples.even(torch.ones(1, 2)), Samples.uneven([torch.tensor([1.0, 3.0]), torch.tensor([1.0])])
    assert standard_error(one, torch.clone) is None
    error = standard_error(uneven, torch.clone)
    assert error is not None and error[0] == pytest.approx(1) and error[1].isnan()


def test_shares_are_of_sizes_and_of_nothing_there_are_none() -> None:
    terms = {"curvature": torch.tensor([3.0, -3.0]), "information": torch.tensor([0.0, 2.0])}
    assert term_shares(terms) == {"curvature": 0.75, "information": 0.25}
    assert all(math.isnan(share) for share in term_shares({"gate": torch.zeros(2)}).values())
    assert sink_mass(torch.tensor([-1.0, 3.0])) == 0.25 and math.isnan(sink_mass(torch.zeros(2)))


def test_scores_agree_with_any_multiple_of_themselves() -> None:
    scores = torch.tensor([1.0, 5.0, 2.0, 2.0])
    assert agreement(scores, 3 * scores) == pytest.approx({"rank_correlation": 1, "l1": 0}, abs=1e-6)
    assert agreement(scores[:2], scores[:2].flip(0)) == pytest.approx({"rank_correlation": -1, "l1": 4 / 3})
    assert math.isnan(rank_correlation(scores, torch.ones(4)))
