"""captum does the same work as we do where it should."""

from typing import Any

import pytest
import torch

from benchmarks.peers import COLUMNS, WORK, Case, Counted, attributed, row
from helpers import zoo
from helpers.asking import relative


@pytest.fixture(scope="module")
def case() -> Case:
    model: Any = zoo.bridge("gpt2", torch.float32)
    return Case.of(model, zoo.prompt(model, 7))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, work in WORK.items() if work.exact])
def test_exact_methods_find_the_same_scores(case: Case, name: str) -> None:
    expected = WORK[name].peer(case, Counted(case), 4).detach()
    assert relative(attributed(case, WORK[name]).scores, expected) < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_row_says_what_both_took(case: Case) -> None:
    cells = dict(zip(COLUMNS, ["leave one out", *row(case, WORK["leave one out"], 1)], strict=True))
    assert (cells["peer, forwards"], cells["ours, forwards"]) == (
        "8",
        "10",
    )  # ours checks more
    assert float(cells["ρ"]) == 1
