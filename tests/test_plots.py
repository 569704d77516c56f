"""Views in a terminal and on a page."""

import re
from dataclasses import replace
from html import unescape
from io import StringIO

import pytest
import torch
from asking import explain
from rich.console import Console

import zoo
from heta_lens import plots
from heta_lens.attribution import Attribution
from heta_lens.plots.heat import heat
from heta_lens.plots.shades import BLUE, ORANGE, WHITE, shades


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    model = zoo.bridge("gpt2")
    return explain(model, zoo.prompt(model), balance="sum")


def printed(attribution: Attribution, **options: object) -> tuple[str, str]:
    """As a terminal shows it, and the text alone."""
    coloured = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=100)
    plain = Console(file=StringIO(), width=100, no_color=True)
    for console in (coloured, plain):
        console.print(plots.terminal(attribution, **options))  # type: ignore[arg-type]
    return tuple(console.file.getvalue() for console in (coloured, plain))  # type: ignore[return-value]


def test_colours_go_from_white_to_blue_and_orange() -> None:
    found = shades(torch.tensor([0.0, 1.0, 0.8, -1.0]))
    assert found[0] == WHITE
    assert found[1] == BLUE
    assert found[3] == ORANGE
    assert WHITE.red > found[2].red > BLUE.red
    assert set(shades(torch.zeros(3))) == {WHITE}


def test_a_terminal_shows_every_part_once_and_the_highest_scores(attribution: Attribution) -> None:
    _, plain = printed(attribution, top=3)
    assert [plain.splitlines().count(name) for name in ("score", "gate", "curvature", "information")] == [1] * 4
    rows = plain[plain.index("position") :].splitlines()[1:]
    listed = [int(row.split()[0]) for row in rows if row.strip()]
    assert listed == [position for one in attribution.top(3) for position in one.positions]


def test_the_deepest_blue_is_on_the_highest_score(attribution: Attribution) -> None:
    coloured, _ = printed(attribution)
    best = attribution.top(1)[0].text
    red, green, blue = BLUE
    assert f"48;2;{red};{green};{blue}m{best}" in coloured


def test_marked_tokens_are_underlined(attribution: Attribution) -> None:
    coloured, _ = printed(attribution, marked=[2])
    assert re.findall(r"\x1b\[4;[^m]*m([^\x1b]*)", coloured) == [attribution.tokens[2]] * 4


def test_a_page_holds_all_of_it_and_needs_nothing(attribution: Attribution) -> None:
    view = plots.page(attribution, marked=[2], note="a < b")
    page = view.fragment
    assert "<script" not in page
    assert "http" not in page
    assert "a &lt; b" in page
    assert page.count("class=marked") == 4
    for values in (attribution.scores, *attribution.parts.values()):
        for position, value in enumerate(values.tolist()):
            assert f'title="{position}: {value:.4g}"' in page
    strips = re.findall(r'<div class="tokens">(.*?)</div>', page, re.DOTALL)
    assert [unescape(re.sub("<.*?>", "", strip)) for strip in strips] == ["".join(attribution.tokens)] * 4


def test_what_tokens_say_cannot_break_a_page(attribution: Attribution) -> None:
    nasty = replace(attribution, tokens=("</div><script>alert(1)</script>", *attribution.tokens[1:]))
    assert "<script" not in plots.page(nasty).fragment
    assert "[bold]" in printed(replace(attribution, tokens=("[bold]", *attribution.tokens[1:])))[1]


def test_tokens_cannot_steer_a_terminal_and_no_colour_means_no_strips(attribution: Attribution) -> None:
    nasty = replace(attribution, tokens=("\x1b[31mred", *attribution.tokens[1:]))
    assert "\x1b[31mred" not in printed(nasty)[0]
    assert "\x1b" not in plots.page(nasty).fragment.split("<table>")[0]
    plain = printed(attribution, coloured=False)[1]
    assert "position" in plain
    assert "gate\n" not in plain


def test_a_wide_heat_map_goes_on_below() -> None:
    values = torch.arange(2 * 80.0).reshape(2, 80)
    view = heat("wide", ["above", "below"], [f"t{at}" for at in range(80)], values, "all of it")
    tables = re.findall(r"<table>.*?</table>", view.fragment)
    widths = [len(re.findall(r"<th>t\d+</th>", table)) for table in tables]
    assert sum(widths) == 80 and max(widths) <= 36 and max(widths) - min(widths) <= len(widths)
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


def test_the_list_is_in_the_order_of_the_top_for_signed_scores_too(attribution: Attribution) -> None:
    scores = torch.tensor([(-1.0) ** row * row for row in range(len(attribution))], dtype=torch.float64)
    signed = replace(attribution, scores=scores, signed=True, parts={})
    _, plain = printed(signed, top=4, coloured=False)
    rows = plain[plain.index("position") :].splitlines()[1:]
    assert [int(row.split()[0]) for row in rows if row.strip()] == [one.positions[0] for one in signed.top(4)]
    assert f"most against the target: {signed.tokens[int(scores.argmin())]!r}" in plain


def test_neither_escapes_nor_markup_reach_a_terminal_or_a_page(attribution: Attribution) -> None:
    hostile = ["\x1b[2J", "\x9b31m", "\u202e", "[red]", "\x07", "\x7f"]
    tokens = (*hostile, *attribution.tokens[len(hostile) :])
    made = replace(attribution, tokens=tokens, method="\x1b]0;x\x07[bold]", parts={"\x1b[1m[red]a": attribution.scores})
    _, plain = printed(made, top=len(made))
    for shown in (plain, plots.page(made).fragment):
        assert not set(shown) & set("\x1b\x9b\u202e\x07\x7f")
        assert all(seen in shown for seen in ("␛[2J", r"\x9b31m", r"\u202e", "[red]", "␇", "␡", "[bold]", "␛[1m[red]a"))
