"""What is known beside the scores: typed, and a read-only mapping; standard errors, shares and agreement, by hand."""

from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from heta_lens.diagnostics import Cost, Diagnostics

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
