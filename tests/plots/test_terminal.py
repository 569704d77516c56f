"""An attribution in a terminal."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.table import Table

from helpers.attributions import attribution as made_by_hand
from helpers.attributions import double, of_chat, uncertain
from heta_lens import plots
from heta_lens._util.text import text_table
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.scales import BLUE, tint

# ------------------------------------------------------------------------------------------------------------- terminal
SYSTEMS = ["truecolor", "256", "standard", None]


def shown(made: Attribution, system: str | None, width: int = 100, **options: object) -> str:
    """As a terminal with these colours shows it, special tokens included."""
    options = {"special": True, **options}
    Style.parse.cache_clear()  # a style keeps the codes of the first terminal that it is written to,
    Style._add.cache_clear()  # as does a style added to another
    console = Console(file=StringIO(), force_terminal=True, color_system=system, width=width)  # type: ignore[arg-type]
    console.print(plots.terminal(made, **options))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined]


def plain(made: Attribution, width: int = 100, **options: object) -> str:
    """Without any colour."""
    return shown(made, None, width, **options)


def rows(text: str) -> list[list[str]]:
    """The rows of the table of tokens."""
    lines = text[text.index("position") :].split("\n\n")[0].splitlines()[1:]
    return [row.split() for row in lines if row[:1].isdigit()]


# ---------------------------------------------------------------------------------------------------------- the prompt
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_prompt_is_there_once_whatever_the_colours(attribution: Attribution, system: str | None) -> None:
    text = re.sub(r"\x1b\[[^m]*m|[⏎\n]| {2,}", "", shown(attribution, system))
    assert text.count("".join(attribution.tokens).strip()) == 1


def test_no_colour_leaves_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=StringIO(), force_terminal=True, width=100)
    console.print(plots.terminal(made_by_hand(), special=True))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "  <bos>The cat sat⏎\n" in text and not re.search(r"\x1b\[[\d;]*[34]8;", text)


@pytest.mark.parametrize("system", SYSTEMS)
def test_tokens_cannot_steer_a_terminal(system: str | None) -> None:
    text = shown(made_by_hand(["\x1b[31mred", "\u202eevil", "\t", " x\ty", "\ud800", "\x9b2J"]), system)
    assert not re.search("\x1b\\[31m|[\u202e\t\x9b]", text)
    assert "␛[31mred" in text and r"\u202eevil" in text
    text.encode()


# ---------------------------------------------------------------------------------------------------------- the legend
def test_the_legend_says_what_the_deepest_colour_stands_for() -> None:
    assert re.search(r"colour: 0 +6 \(47\.1% of the score\)\n", uncoloured(shown(made_by_hand(), "truecolor")))
    signed = made_by_hand(scores=[6, -4, 0, 0, 0, 0], signed=True)
    assert re.search(r"colour: -6 +6 \(60\.0% of the score\)\n", uncoloured(shown(signed, "256")))


def test_a_score_beyond_the_deepest_colour_is_named_even_after_a_sink() -> None:
    sunk = made_by_hand(["The", " cat", " sat", " on"], [9.0, 5.0, 1.0, 1.0])
    assert "; ' cat' at 1 is beyond the scale: 5 (31.2% of the score)" in uncoloured(shown(sunk, "256", 200))


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[^m]*m", "", text)


# ----------------------------------------------------------------------------------------------------------- the table
def test_a_squared_gradient_is_not_called_curvature_and_a_gate_that_is_off_is_no_column() -> None:
    options = {"variant": "gs", "combine": "geometric", "gate": "none"}
    text = plain(replace(uncertain(), options=options))
    (head,) = (line for line in text.splitlines() if line.lstrip().startswith("position"))
    assert re.split(r" {2,}", head.strip())[3:] == ["share", "squared gradient", "information"]
    gated = made_by_hand(parts={"gate": double([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])})
    assert " gate" in plain(gated) and " gate" not in plain(replace(gated, parts={"gate": double([1] * 6)}))


def test_the_highest_scores_are_listed_with_their_parts(attribution: Attribution) -> None:
    text = plain(attribution, top=3)
    head = text[text.index("position") :].splitlines()[0].split()
    assert head == ["position", "token", "score", "share", "gate", "curvature", "information"]
    highest = attribution.top(3, special=True)
    assert [int(row[0]) for row in rows(text)[:3]] == [at for token in highest for at in token.positions]


def test_what_a_search_left_together_is_a_row_with_the_sums_of_scores_and_parts() -> None:
    made = uncertain()
    made = replace(made, diagnostics=Diagnostics.of({**made.diagnostics, "masked_together": ((3, 5, 0.4),)}))
    (row,) = (row for row in rows(plain(made)) if row[0] == "3–4")
    sums = [float(part[3:5].sum()) for part in made.parts.values()]
    assert row[1:3] == ["'sat'", "3"] and [float(part) for part in row[4:]] == sums[-len(row[4:]) :]


def test_scores_have_shares_and_standard_errors_where_there_are_any() -> None:
    table = [row for row in rows(plain(uncertain())) if row[0].isdigit()]
    assert table[0] == ["0", "'<bos>'", "6", "±", "0", "47.1%", "12", "18"]
    assert table[1] == ["2", "'", "cat'", "3", "±", "0.2", "23.5%", "6", "9"]
    assert "±" not in plain(made_by_hand())
    errors = {"scores": double([0.1, float("nan"), 1, 1, 1, 1])}
    made = uncertain()
    partly = replace(made, diagnostics=replace(made.diagnostics, standard_errors=errors))
    assert [len(re.findall("±", " ".join(row))) for row in rows(plain(partly)) if row[1] == "'The'"] == [0]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("system", SYSTEMS)
def test_nothing_is_wider_than_the_terminal(attribution: Attribution, system: str | None, width: int) -> None:
    for made in (attribution, of_chat(signed=True)):
        lines = uncoloured(shown(made, system, width)).splitlines()
        assert max(map(cell_len, lines)) <= width


# --------------------------------------------------------------------------------------------------------------- chats
def test_a_chat_has_a_table_of_its_messages() -> None:
    text = plain(of_chat(signed=True))
    assert [row.split() for row in text[text.index("message  role") :].splitlines()] == [
        ["message", "role", "share", "score", "text"],
        ["0", "user", "27.5%", "3.5", "'The", "cat'"],
        ["1", "assistant", "15.7%", "2", "'sat'"],
        ["2", "user", "0.0%", "0", "''"],
        ["template", "56.9%", "7.25"],
    ]
    assert "message  role" not in plain(made_by_hand())


# ------------------------------------------------------------------------------------ special tokens, first and last
def test_special_tokens_have_no_colour_and_no_row_but_a_line_below() -> None:
    text = plain(made_by_hand(), special=False)
    assert [row[0] for row in rows(text)] == ["2", "4", "3", "1", "5"]
    below = "'<bos>' (first token, special) holds 47% of the score"
    assert text.index("position  token") < text.index(below) and text.count(below) == 1
    coloured = shown(made_by_hand(), "truecolor", special=False)
    red, green, blue = tint(BLUE)
    assert f"48;2;{red};{green};{blue}m cat" in coloured and "\x1b[2m<bos>\x1b[0m" in coloured


def test_a_token_without_score_keeps_the_terminals_colours() -> None:
    coloured = shown(made_by_hand(scores=[0.0, 0.0, 5.0, 0.1, 0.0, 0.0]), "truecolor", special=False)
    assert re.search(r"48;2;[\d;]+m cat", coloured) and not re.search(r"48;2;[\d;]+m(The| sat)", coloured)


# ------------------------------------------------------------------------------------------------------- terminal table
def lines_of(table: Table, width: int) -> list[str]:
    """As a terminal without colours shows a table."""
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(table)
    return [line.rstrip() for line in shown.get().splitlines()]


def test_a_table_has_aligned_columns_and_folds_long_texts() -> None:
    rows = [("12", "' jar'", "0.0002298 (1)"), ("3", "' 世界'", "3.076e-05 (2)")]
    assert lines_of(text_table(["position", "token", "heta"], rows, ["heta"]), 40) == [
        "position  token             heta",
        "12        ' jar'   0.0002298 (1)",
        "3         ' 世界'  3.076e-05 (2)",
    ]
    folded = lines_of(text_table(["", ""], [("loo", "word " * 20)], header=False), 30)
    assert len(folded) > 3 and " ".join(folded).count("word") == 20


@pytest.mark.parametrize("width", [8, 12, 30, 200])
@pytest.mark.parametrize(
    "cell", ["x" * 300, "世" * 100, "a\tb\nc\x1b[2J", "[red]x"], ids=["long", "wide", "steering", "markup"]
)
def test_no_line_is_wider_than_the_room_or_steers_the_terminal(cell: str, width: int) -> None:
    shown = lines_of(text_table(["text", "score"], [(cell, "1")], ["score"], bold={(0, 0)}), width)
    assert max(map(cell_len, shown)) <= width
    assert not set("".join(shown)) & set("\t\x1b") and ("[red]" in "".join(shown)) == (cell == "[red]x" and width > 8)
