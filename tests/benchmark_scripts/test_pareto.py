"""Ways to a score are placed by cost and error, and the best of them are found."""

from pathlib import Path

import pytest

from benchmarks import pareto
from benchmarks.pareto import Point, front
from helpers import zoo
from helpers.asking import predict, relative
from heta_lens.diagnostics import rank_correlation


def test_a_way_is_on_the_front_unless_a_cheaper_one_is_nearer_by_more_than_chance() -> None:
    def point(flops: float, *errors: float) -> Point:
        return Point(flops, list(errors * 5), [])

    templates = [str(prompt) for prompt in range(20)]
    placed = {
        "near": point(9, 0.1, 0.11, 0.12, 0.13),
        "cheap": point(1, 0.9, 0.8, 0.8, 0.9),
        "beaten": point(5, 0.9, 0.95, 0.95, 0.95),
        "between": point(4, 0.5, 0.6, 0.5, 0.6),
        "as near as between": point(4.5, 0.6, 0.51, 0.6, 0.52),
    }
    assert front(placed, templates) == ["cheap", "between", "as near as between", "near"]
    assert front({**placed, "as cheap": point(1, 0.2, 0.3, 0.25, 0.3)}, templates) == ["as cheap", "near"]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, 4])
def test_fewer_probes_are_the_first_of_more(groups: int | None) -> None:
    model = zoo.native_bridge()
    prediction = predict(model, zoo.prompt(model, 20), 7)
    found = dict(pareto.by_probes(prediction, groups, {"few": 3, "more": 6}))
    for way, probes in (("few", 3), ("more", 6)):
        whole = pareto.scored(prediction, {"groups": groups, "probes": probes})
        assert relative(found[way], whole.parts["curvature"]) < 1e-6
    assert relative(found["few"], found["more"]) > 1e-3


def test_ways_have_short_names() -> None:
    assert [
        *map(pareto.short, (pareto.DEFAULT, "each token alone, probes=5", "row, probes=10", "tolerance=0.05", "gs"))
    ] == [*("16 × 10", "alone × 5", "row × 10", "tolerance", "gs")]


def test_ways_that_share_products_are_those_of_as_many_groups() -> None:
    families = dict(pareto.families())
    assert families[16] == {pareto.DEFAULT: 10, "groups=16, probes=5": 5, "groups=16, probes=20": 20}
    assert families[None]["each token alone, probes=2"] == 2 and "tolerance=0.05" not in families[16]


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_every_way_is_measured_against_the_same_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ways = {pareto.DEFAULT: {"probes": 2}, "row": {"support": "row", "probes": 2}, "tolerance": {"tolerance": 0.5}}
    monkeypatch.setattr(pareto, "WAYS", ways)
    monkeypatch.setattr(pareto, "REFERENCE", {"groups": 4, "probes": 2, "seed": 3})
    prompt = pareto.recall(0)
    outcome = pareto.measured(prompt, counted=True)
    assert outcome["length"] == len(prompt.prediction) and outcome["ways"].keys() == outcome["flops"].keys() == {*ways}
    assert outcome["flops"]["row"] < outcome["flops"][pareto.DEFAULT]
    whole = pareto.scored(prompt.prediction, {"probes": 2})
    reference = pareto.scored(prompt.prediction, pareto.REFERENCE)
    ranks = rank_correlation(whole.scores, reference.scores)  # which combining the parts must not change
    assert outcome["ways"][pareto.DEFAULT].ranks == pytest.approx(ranks, abs=1e-6)
    assert 0 < outcome["ways"][pareto.DEFAULT].mass < 1
    (row,) = (row for row in pareto.rows([outcome], pareto.points([outcome]), ["one"]) if row[0] == "row")
    assert len(row) == len(pareto.COLUMNS) and row[2] == "yes"
    pareto.draw({"recall": pareto.points([outcome])}, {"recall": ["row"]}, tmp_path / "picture.svg")
    assert "row" in (tmp_path / "picture.svg").read_text()
