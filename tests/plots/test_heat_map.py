"""Heat maps."""

import re
from pathlib import Path

import pytest
import torch

from helpers.browser import needs_browser, run
from helpers.pages import data, numbers
from heta_lens.plots.page import MANY, heat
from heta_lens.plots.scales import BLUE, ORANGE


def test_a_wide_heat_map_goes_on_below() -> None:
    values = torch.arange(2 * 80.0).reshape(2, 80)
    view = heat("wide", ["above", "below"], [f"t{at}" for at in range(80)], values, "all of it")
    tables = re.findall(r"<table>.*?</table>", view.fragment, re.DOTALL)
    widths = [len(re.findall(r"<th>t\d+</th>", table)) for table in tables]
    assert widths == [27, 27, 26]
    assert all("<th>above</th>" in table and "<th>below</th>" in table for table in tables)
    cells = [re.findall(r'title="(\w+), t(\d+): ([^"]+)"', table) for table in tables]
    shown = {(row, int(at)): float(value) for table in cells for row, at, value in table}
    assert shown == {(row, at): 80 * line + at for line, row in enumerate(["above", "below"]) for at in range(80)}
    assert [int(at) for table in cells for row, at, _ in table if row == "above"] == [*range(80)]


def test_a_heat_map_says_where_columns_stand_and_what_its_colours_are() -> None:
    values = torch.tensor([[0.0, 0.5, -0.25]])
    page = heat("three", ["row"], ["a", "a", "b"], values, positions=[7, 8, 9]).fragment
    assert re.findall(r"<th class=number>(\d+)</th>", page) == ["7", "8", "9"]
    assert f'{BLUE.css}"></i> 0.5' in page and f'{ORANGE.css}"></i> -0.5' in page and "colour is 0" in page
    assert "beyond" not in page and "beyond" in heat("far", ["row"], ["a", "b", "c"], 9 * values**3).fragment
    assert ORANGE.css not in heat("none", ["row"], ["a", "b", "c"], values.abs()).fragment
    assert "colour is 0" not in heat("nothing", ["row"], ["a", "b", "c"], 0 * values).fragment


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_colour_is_refused_by_its_place(value: float) -> None:
    with pytest.raises(ValueError, match=f"'below', 'b' is {value}, which has no colour"):
        heat("wrong", ["above", "below"], ["a", "b"], torch.tensor([[0.0, 1.0], [2.0, value]]))


def test_a_large_table_is_drawn_where_it_is_in_view() -> None:
    values = torch.arange(200 * 800.0).reshape(200, 800)
    view = heat("large", [f"r{row}" for row in range(200)], [f"c{column}" for column in range(800)], values)
    assert len(view.fragment) < 1e6 and "<table>" not in view.fragment
    assert numbers(data(view)["values"]) == values.flatten().tolist() and data(view)["columns"][-1] == "c799"
    assert "<script" not in heat("small", ["r"], ["c"], values[:1, :1]).fragment


def test_names_cannot_end_the_script_of_a_large_table() -> None:
    values, columns = torch.ones(1, MANY + 1), ["</script><b>"] * (MANY + 1)
    view = heat("large", ["</script>"], columns, values)
    assert view.fragment.count("</script>") == 2 and data(view)["rows"] == ["</script>"]


@needs_browser
def test_a_large_table_answers_and_scrolls(tmp_path: Path) -> None:
    values = torch.arange(200 * 800.0).reshape(200, 800)
    view = heat("large", [f"r{row}" for row in range(200)], [f"c{column}" for column in range(800)], values)
    script = """const canvas = $("canvas"), box = $(".box"), pixels = () => canvas.toDataURL(), before = pixels();
      const { left, top } = canvas.getBoundingClientRect();
      const at = { clientX: left + 60, clientY: top + 60, bubbles: true };
      canvas.dispatchEvent(new MouseEvent("mousemove", at));
      const said = tip();
      box.scrollTop = 900; box.scrollLeft = 3000; box.onscroll();
      await new Promise(requestAnimationFrame);
      canvas.dispatchEvent(new MouseEvent("mousemove", at));
      return { said, later: tip(), redrawn: pixels() !== before, canvas: canvas.height, sheet: box.scrollHeight };"""
    shown = run(view.page, script, tmp_path)
    assert shown["said"] == "r1, c1: 801" and shown["later"] == "r61, c201: 49000"
    assert shown["redrawn"] and shown["canvas"] < 1500 < 3000 < shown["sheet"]
