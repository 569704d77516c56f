"""Other libraries do the same work as we do, where they should."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import heta_lens
from benchmarks.models import SMOLLM2
from benchmarks.peers import (
    COLUMNS,
    PYTHON,
    Asked,
    Work,
    asked_of_smollm2,
    between_seeds,
    by_captum,
    elsewhere,
    ours,
    row,
)
from benchmarks.peers_worker import Ran, Side
from helpers import zoo
from helpers.asking import relative
from heta_lens._util.python import quietly


@pytest.fixture(scope="module")
def asked() -> Asked:
    model: Any = zoo.bridge("gpt2", torch.float32)
    return Asked.of(model, zoo.prompt(model, 7))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_exact_methods_find_the_same_scores(asked: Asked) -> None:
    exact = [work for work in by_captum(asked) if work.exact]
    assert {work.method for work in exact} == {"integrated_gradients", "leave_one_out"}
    for work in exact:
        assert relative(ours(asked, work).run(1).scores, work.peer.run(4).scores) < 1e-4, work.title


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_row_says_what_both_took(asked: Asked) -> None:
    (work,) = (work for work in by_captum(asked) if work.method == "leave_one_out")
    cells = dict(zip(COLUMNS, row(asked, work, 1), strict=True))
    assert (cells["peer, forwards"], cells["ours, forwards"]) == ("8", "10")  # ours checks more
    assert float(cells["ρ"]) == 1 and cells["work"] == "leave one out"


def test_a_peer_is_given_its_best_batch(asked: Asked) -> None:
    ran = Counter[int]()

    def run(batch: int) -> Ran:
        ran[batch] += 1
        return Ran(torch.arange(7.0), {4: 2.0, 16: 1.0, 64: 3.0}[batch], 1)

    work = Work("recency", Side(run, lambda batch: float(batch)), "recency", {}, True)
    cells = dict(zip(COLUMNS, row(asked, work, 2), strict=True))
    assert ran == {4: 1 + 2, 64: 2, 16: 2 + 1 + 2}
    assert cells["peer, s"] == "1" and cells["peer, MiB"] == "16"


def test_only_methods_that_draw_are_compared_with_themselves(asked: Asked) -> None:
    side = Side(lambda batch: Ran(torch.arange(7.0), 1.0, batch), float)
    found = torch.arange(7.0, dtype=torch.float64)
    assert between_seeds(asked, Work("recency", side, "recency", {}, True), found) == "–"
    drawn = Work("random", side, "random", {"seed": 3}, False)
    other = quietly(lambda: heta_lens.attribute(asked.cache, asked.target, method="random", tokens=asked.ids, seed=4))
    assert between_seeds(asked, drawn, other.scores.double()) == "1.000"
    assert between_seeds(asked, drawn, -other.scores.double()) == "-1.000"


@pytest.fixture(scope="module")
def works() -> Iterator[tuple[Asked, list[Work]]]:
    if not (SMOLLM2.is_dir() and PYTHON.exists()):
        pytest.skip("needs `make real-models` and `make .venv/oracles/ready`")
    asked = asked_of_smollm2()
    with elsewhere(asked) as works:
        yield asked, works


@pytest.mark.slow
def test_peers_elsewhere_find_the_same_scores(works: tuple[Asked, list[Work]]) -> None:
    asked, given = works
    exact = ["integrated_gradients", "leave_one_out"]
    assert [work.method for work in given if work.exact] == ["attn_lrp", *exact, *exact]
    for work in given:
        if work.exact:
            assert relative(ours(asked, work).run(1).scores, work.peer.run(4).scores) < 1e-4, work.title
