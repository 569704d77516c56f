"""Tokens as coloured text in a figure."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from helpers.attributions import attribution
from heta_lens import Attribution, SpanAttribution
from heta_lens._util import python
from heta_lens.plots.figures import (
    GAP,
    POINTS,
    SIZE,
    WIDTH,
    Coloured,
    drawable,
    exports_of,
    in_reading_order,
    laid_out,
    looks,
    stacked,
    token_figure,
)
from heta_lens.plots.latex_tokens import latex
from heta_lens.plots.scales import shades

HOSTILE = (
    "$x_1$",
    "\n",
    " 🎉",
    "</script>",
    " שלום",
    "a%b&c#d{e}~^\\",
    "\u202e",
    " 中文",
    "\n\n",
    "\t",
    "  ",
    "\\frac",
)


def texts(figure: Figure) -> list[str]:
    found: list[Any] = figure.findobj(Text)
    return [text.get_text() for text in found if text.get_text()]


def grounds(figure: Figure) -> list[Any]:
    found: list[Any] = figure.axes[0].findobj(Rectangle)
    return [patch for patch in found if patch is not figure.axes[0].patch]


def hostile() -> Attribution:
    return attribution(HOSTILE, [(-1) ** at * float(at) for at in range(len(HOSTILE))], signed=True, target_text="$_")


def span(count: int = 3) -> SpanAttribution:
    tokens = ("The", " cat", " s", "at", " on", " it")
    start = len(tokens) - count
    steps = [attribution(tokens[:end], range(1, end + 1)) for end in range(start, len(tokens))]
    return SpanAttribution(tuple(steps), tokens)


def letters(text: str) -> float:
    return 10.0 * len(text)


def test_texts_stand_one_below_another_with_a_scale_each() -> None:
    both = stacked([Coloured.of(hostile()), Coloured.of(span())])
    alone = [token_figure(hostile()), token_figure(span())]
    assert both.get_figheight() == pytest.approx(sum(figure.get_figheight() for figure in alone) + GAP / POINTS)
    assert sorted(texts(both)) == sorted(text for figure in alone for text in texts(figure))
    first, second = (axes for axes in both.axes if axes.get_position().width == 1)
    assert first.get_position().y0 > second.get_position().y1, "neither covers the other"
    assert (first.get_position().y1, second.get_position().y0) == pytest.approx((1, 0))


# -------------------------------------------------------------------------------------------------------------- layout
def test_lines_break_between_words_and_at_line_ends() -> None:
    pieces = [*laid_out(["one", " two", "s", " three", "\n", "four"], 90.0, letters)]
    assert [(piece.text, piece.row, piece.left) for piece in pieces] == [
        ("one", 0, 0),
        (" two", 0, 30),
        ("s", 0, 70),
        (" three", 1, 0),
        ("⏎", 1, 60),
        ("four", 2, 0),
    ]
    assert [piece.token for piece in pieces] == [*range(6)]
    moved = [*laid_out(["one", " two", "fold"], 90.0, letters)]
    assert [piece.row for piece in moved] == [0, 1, 1], "a word stays together"
    assert [piece.row for piece in laid_out(["a", " bcd", "\n"], 50.0, letters)] == [0, 1, 1], "with its line end"


def test_words_that_are_read_from_the_right_stand_in_that_order() -> None:
    pieces = in_reading_order([*laid_out(["a", " ש", " לו", "!", " b", "\n", "ם", " ש"], 20.0, len)])
    placed = [(piece.text, piece.row, piece.left) for piece in pieces]
    assert placed[:5] == [("a", 0, 0), (" ש", 0, 4), (" לו", 0, 1), ("!", 0, 6), (" b", 0, 7)]
    assert placed[-2:] == [("ם", 1, 2), (" ש", 1, 0)]


def test_what_is_too_long_for_a_line_is_cut() -> None:
    pieces = [*laid_out(["a", "b" * 25], 100.0, letters)]
    assert [(piece.row, len(piece.text)) for piece in pieces] == [(0, 1), (1, 10), (2, 10), (3, 5)]
    assert [piece.text for piece in laid_out(["wide"], 5.0, letters)] == [*"wide"]


def test_a_token_may_have_several_line_ends() -> None:
    pieces = [*laid_out(["a\n\nb", "", "c"], 100.0, letters)]
    assert [(piece.token, piece.text, piece.row) for piece in pieces] == [
        (0, "a⏎", 0),
        (0, "⏎", 1),
        (0, "b", 2),
        (1, "", 2),
        (2, "c", 2),
    ]


# ------------------------------------------------------------------------------------------------------------- drawing
@pytest.mark.parametrize("make", [attribution, hostile, span])
def test_a_figure_has_the_question_and_the_text_of_every_token(make: Any) -> None:
    shown = make()
    written = texts(token_figure(shown))
    assert drawable(shown.title) in written
    whole = "".join(written)
    assert "".join(map(drawable, shown.tokens)) in whole


def test_evidence_is_underlined_and_notes_are_below() -> None:
    shown = attribution()
    figure = token_figure(shown, marked=[1], note="where it is said")
    assert "where it is said" in texts(figure) and "underlined: evidence" in texts(token_figure(shown, marked=[1]))
    assert figure.axes[0].lines and not token_figure(shown).axes[0].lines
    assert "underlined: evidence" not in texts(token_figure(shown, marked=[99]))


@pytest.mark.slow
def test_nothing_is_read_as_mathematics_or_leaks_into_pyplot() -> None:
    figure = token_figure(hostile())
    found: list[Any] = figure.findobj(Text)
    assert not any(text.get_parse_math() or text.get_usetex() for text in found if text.get_text())
    exports = exports_of(lambda: token_figure(hostile()))
    assert all(make() == make() for make in exports.values())
    assert not pyplot.get_fignums()


def test_backgrounds_are_the_scores_and_black_is_read_on_them() -> None:
    shown = attribution(["The", " cat", " s", "at", ".", "!"], [6.0, -0.5, 3.0, -6.0, 2.0, 0.0])
    colours = [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in grounds(token_figure(shown))]
    assert colours == Coloured.of(shown).tints
    assert colours[5] == (255, 255, 255)
    assert all(contrast_with_black(shade) >= 4.5 for shade in colours)
    assert min(map(contrast_with_black, shades(shown.scores, 6.0))) < 4.5, "the deepest need to be lighter"


def contrast_with_black(shade: Any) -> float:
    parts = [part / 255 for part in shade]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return (luminance + 0.05) / 0.05


def test_the_scale_has_0_its_end_and_the_share_of_that() -> None:
    written = texts(token_figure(attribution(["a", "b", "c"], [1.0, 2.0, 1.0])))
    assert "2 is 50.0% of the score" in written
    figure = token_figure(attribution(["a", "b", "c"], [-1.0, 2.0, 1.0], signed=True))
    figure.draw_without_rendering()
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["−2", "0", "2"]
    assert "0 is 0.0% of the score" not in texts(token_figure(attribution(["a"], [0.0])))


def test_what_is_beyond_the_scale_is_said() -> None:
    beyond = "' cat' at 1 is beyond the scale: 9 (75.0% of the score)"
    assert beyond in texts(token_figure(attribution(["The", " cat", " sat"], [1.0, 9.0, 2.0])))
    assert not [text for text in texts(token_figure(attribution(["a", " cat"], [1.0, 2.0]))) if "beyond" in text]


def test_special_tokens_have_no_colour_and_a_line_says_what_they_hold() -> None:
    shown = Coloured.of(attribution())
    assert shown.tints[0] == (255, 255, 255) != shown.tints[2] and shown.end == 3
    held = "'<bos>' (first token, special) holds 47% of the score"
    assert held in texts(token_figure(attribution()))
    assert re.search(r"special.* holds.* 47\\%", latex(attribution()))
    whole = Coloured.of(attribution(), special=True)
    assert whole.end == 6 and whole.tints[0] != (255, 255, 255)
    sunk = Coloured.of(attribution(["The", " cat", " sat"], [9.0, 2.0, 1.0]))
    assert sunk.end == 2 and sunk.notes == ["'The' (first token) holds 75% of the score: attention sink"]


def test_what_is_left_out_is_said() -> None:
    assert "1 token left out" in texts(token_figure(attribution().without([0])))


def test_the_answer_of_a_span_is_framed() -> None:
    figure = token_figure(span(3))
    frames = [patch for patch in grounds(figure) if not patch.get_fill()]
    own = {text.get_text(): text.get_position()[0] for text in figure.axes[0].texts}
    assert len(frames) == 1 and frames[0].get_x() == own["at"]
    assert "framed: the answer that is explained" in texts(figure)
    filled = [patch for patch in grounds(figure) if patch.get_fill()]
    assert [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in filled[:3]] == Coloured.of(
        span(3)
    ).tints
    assert not [patch for patch in grounds(token_figure(attribution())) if not patch.get_fill()]


@pytest.fixture
def looking() -> Iterator[None]:
    """Drawn as in files: letters are as wide as measured."""
    with looks():
        yield


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("count", [1, 5, pytest.param(400, marks=pytest.mark.slow)])
def test_a_figure_grows_with_the_text_and_nothing_is_outside_of_it(count: int) -> None:
    shown = attribution([f" word{at}" for at in range(count)], torch.rand(count).tolist())
    figure = token_figure(shown)
    assert figure.get_figwidth() * 72 == pytest.approx(WIDTH)
    heights = {1: (1, 1.4), 5: (1, 1.4), 400: (9, 14)}
    assert heights[count][0] < figure.get_figheight() < heights[count][1]
    figure.draw_without_rendering()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1
        assert box.y0 >= 0 and box.y1 <= figure.bbox.height


@pytest.mark.usefixtures("looking")
def test_tokens_stand_side_by_side() -> None:
    figure = token_figure(attribution(["iii", "WWW", "x" * 200, " end"], [1.0] * 4))
    figure.draw_without_rendering()
    tokens = [text for text in figure.axes[0].texts if text.get_fontsize() == SIZE]
    for text, patch in zip(tokens, grounds(figure), strict=True):
        box, ground = text.get_window_extent(), patch.get_window_extent()
        assert ground.x0 - 2 <= box.x0 and box.x1 <= ground.x1 + 2


@pytest.mark.usefixtures("looking")
def test_a_long_title_gets_smaller() -> None:
    figure = token_figure(attribution(target_text="W" * 48))
    figure.draw_without_rendering()
    title: Any = figure.axes[0].texts[0]
    assert title.get_fontsize() < SIZE and title.get_window_extent().x1 <= figure.bbox.width + 1


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"heta-lens\[plots\]"):
        token_figure(attribution())
