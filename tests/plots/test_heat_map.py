"""Heat maps."""

import re

import pytest
import torch

from heta_lens.plots.colours import BLUE, ORANGE
from heta_lens.plots.heat_map import heat


def test_a_wide_heat_map_goes_on_below() -> None:
    values = torch.arange(2 * 80.0).reshape(2, 80)
    view = heat("wide", ["above", "below"], [f"t{at}" for at in range(80)], values, "all of it")
    tables = re.findall(r"<table>.*?</table>", view.fragment, re.DOTALL)
    widths = [len(re.findall(r"<th>t\d+</th>", table)) for table in tables]
    assert widths == [27, 27, 26]
    assert all("<th>above</th>" in table and "<th>below</th>" in table for table in tables)
    told = [re.findall(r'title="(\w+), t(\d+): ([^"]+)"', table) for table in tables]
    found = {(row, int(at)): float(value) for table in told for row, at, value in table}
    assert found == {(row, at): 80 * line + at for line, row in enumerate(["above", "below"]) for at in range(80)}
    assert [int(at) for table in told for row, at, _ in table if row == "above"] == [*range(80)]


def test_a_heat_map_says_where_columns_stand_and_what_its_colours_are() -> None:
    values = torch.tensor([[0.0, 0.5, -0.25]])
    page = heat("three", ["row"], ["a", "a", "b"], values, positions=[7, 8, 9]).fragment
    assert re.findall(r"<th class=number>(\d+)</th>", page) == ["7", "8", "9"]
    assert f'{BLUE.css}"></i> 0.5' in page and f'{ORANGE.css}"></i> -0.5' in page and "white is 0" in page
    assert "beyond" not in page and "beyond" in heat("far", ["row"], ["a", "b", "c"], 9 * values**3).fragment
    assert ORANGE.css not in heat("none", ["row"], ["a", "b", "c"], values.abs()).fragment
    assert "white is 0" not in heat("nothing", ["row"], ["a", "b", "c"], 0 * values).fragment


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_colour_is_refused_by_its_place(value: float) -> None:
    with pytest.raises(ValueError, match=f"'below', 'b' is {value}, which has no colour"):
        heat("wrong", ["above", "below"], ["a", "b"], torch.tensor([[0.0, 1.0], [2.0, value]]))
