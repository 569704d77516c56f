"""The highest scores as bars."""

import base64
import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib import pyplot
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from helpers.attributions import attribution, double, uncertain
from heta_lens import Attribution, SpanAttribution, plots
from heta_lens._util import python
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.figures import _figure, _rows, bars, named, terms_of

HOSTILE = ("$x_1$", "\n", " 🎉", "</script>", " שלום", "a%b&c#d{e}~^\\", "\u202e", " 中文")


def drawn(
    shown: Attribution, top: int = 20, confidence: float = 0.95, order: Any = "score", *, special: bool = True
) -> Figure:
    rows = _rows(shown, top, order, ~shown.hidden | special)
    figure = _figure(shown, rows, confidence, special=special)
    figure.draw_without_rendering()
    return figure


def labels(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def widths(figure: Any, axes: int = 0) -> list[float]:
    return [patch.get_width() for patch in figure.axes[axes].patches if isinstance(patch, Rectangle)]


def texts(figure: Figure) -> list[str]:
    found: list[Any] = figure.findobj(Text)
    return [text.get_text() for text in found]


def test_bars_are_the_scores_highest_first() -> None:
    figure = drawn(attribution(scores=[6.0, -0.5, 3.0, -4.0, 2.0, 0.25], signed=True), top=4)
    assert labels(figure) == ["'<bos>'", "' cat'", "'at'", "' s'"]
    assert widths(figure) == [6.0, 3.0, 2.0, -4.0]
    assert {"0", "2", "4", "3"} <= {*texts(figure)}, "where they are in the text"
    held = "'<bos>' (first token, special) holds"
    assert f"the 4 of 6 tokens with the largest scores; {held} 38% of the score" in texts(figure)
    assert f"all 6 tokens; {held} 47% of the score" in texts(drawn(attribution()))
    low, high = figure.axes[0].get_ylim()
    assert low > high, "the first on top"


def test_special_tokens_have_no_bar() -> None:
    figure = drawn(attribution(), special=False)
    assert labels(figure) == ["' cat'", "'at'", "' s'", "'The'", r"'\n'"]
    assert "all 5 tokens; '<bos>' (first token, special) holds 47% of the score" in texts(figure)


def test_the_axis_goes_to_the_largest_score_but_that_of_a_sink() -> None:
    made = attribution(["The", " cat", " sat", "."], [9.0, 2.0, 1.0, -1.0], signed=True)
    figure: Any = drawn(made)
    low, high = figure.axes[0].get_xlim()
    assert 2 < high < 3 and -2 < low < -1 and "9" in texts(figure)
    assert labels(figure)[0] == "'The'"
    assert any("'The' (first token) holds 69% of the score: attention sink" in text for text in texts(figure))


def test_bars_may_be_in_the_order_of_the_text() -> None:
    assert labels(drawn(attribution(), top=3, order="text")) == ["'<bos>'", "' cat'", "'at'"]
    equal = drawn(attribution(scores=[1.0] * 6), top=2)
    assert labels(equal) == ["'<bos>'", "'The'"], "of equal ones, the first in the text"


def test_places_are_those_in_the_text() -> None:
    assert {"2", "4"} <= {*texts(drawn(attribution().without([0, 1, 3])))}


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_error_bars_are_the_interval(confidence: float) -> None:
    shown = uncertain()
    figure = drawn(shown, confidence=confidence, order="text")
    (lines,) = (item for item in figure.axes[0].collections if isinstance(item, LineCollection))
    ends = torch.tensor([[segment[0][0], segment[1][0]] for segment in lines.get_segments()])
    low, high = shown.interval(confidence)
    torch.testing.assert_close(ends, torch.stack([low, high], 1), check_dtype=False)
    assert f"score, with its {confidence:.0%} confidence interval" in texts(figure)


def test_scores_that_are_certain_have_no_error_bars() -> None:
    figure = drawn(attribution())
    assert not figure.axes[0].collections and figure.axes[0].get_xlabel() == "score"


# -------------------------------------------------------------------------------------------------------------- parts
def heta(balance: str, **known: Any) -> Attribution:
    """By Eq. 4."""
    gate, curvature, information = double([0.5, 0.2, 0.3]), double([4.0, 1.0, 3.0]), double([1.0, 2.0, 5.0])
    divide = {"none": lambda part: part, "sum": lambda part: part / part.sum(), "max": lambda part: part / part.max()}
    scores = gate * (0.25 * divide[balance](curvature) + 0.75 * divide[balance](information))
    return attribution(
        ["a", "b", "c"],
        scores.tolist(),
        parts={"gate": gate, "curvature": curvature, "information": information},
        options={"beta": 0.25, "gamma": 0.75, "balance": balance},
        diagnostics=Diagnostics.of(known),
    )


@pytest.mark.parametrize("balance", ["none", "sum", "max"])
def test_the_parts_of_a_score_add_up_to_it(balance: str) -> None:
    shown = heta(balance)
    terms = terms_of(shown)
    torch.testing.assert_close(terms["curvature"] + terms["information"], shown.scores)
    figure = drawn(shown, order="text")
    curvature, information = torch.tensor(widths(figure, 1), dtype=torch.float64).reshape(2, 3)
    torch.testing.assert_close(curvature, terms["curvature"] / shown.scores)
    torch.testing.assert_close(curvature + information, torch.ones_like(curvature))
    assert {"curvature", "information"} <= {*texts(figure)}


@pytest.mark.parametrize(
    "shown",
    [
        heta("sum", share={"curvature": 0.009, "information": 0.991}),
        heta("sum").without([1]),
        replace(heta("none"), scores=heta("none").scores * 2),
        replace(heta("none"), parts={"gate": heta("none").parts["gate"]}),
        attribution(),
    ],
    ids=["weak", "left out", "another formula", "gate alone", "no parts"],
)
def test_parts_are_not_shown_where_they_say_nothing_or_are_not_the_score(shown: Attribution) -> None:
    assert terms_of(shown) == {}
    assert len(drawn(shown).axes) == 1


def test_a_score_of_0_has_no_parts_and_does_not_divide_by_it() -> None:
    shown = heta("none")
    gone = replace(shown, scores=shown.scores * 0, parts={**shown.parts, "gate": shown.parts["gate"] * 0})
    assert widths(drawn(gone), 1) == [0.0] * 6


# --------------------------------------------------------------------------------------------------------------- views
@pytest.mark.slow
def test_the_view_is_an_image_and_can_be_saved_as_figures_and_as_a_table() -> None:
    view = bars(uncertain())
    image = base64.b64decode(re.findall('src="data:image/svg[+]xml;base64,([^"]*)"', view.fragment)[0])
    assert image == view.exports[".svg"]() and b"<svg" in image
    assert set(view.exports) == {".svg", ".png", ".pdf", ".csv"}
    table: Any = view.exports[".csv"]()
    pd.testing.assert_frame_equal(pd.read_csv(StringIO(table)), uncertain().to_frame())
    assert all(make() == make() for make in view.exports.values())
    assert not pyplot.get_fignums() and plots.bars is bars


def test_hostile_tokens_are_shown_as_they_are() -> None:
    shown = attribution(HOSTILE, range(1, len(HOSTILE) + 1), target_text='"><script>$')
    figure = drawn(shown)
    assert {*labels(figure)} == {named(token) for token in HOSTILE}
    found: list[Any] = figure.findobj(Text)
    assert not any(text.get_parse_math() for text in found if text.get_text() in labels(figure))
    assert "<script" not in bars(shown).fragment


def test_a_span_has_the_scores_of_all_targets() -> None:
    tokens = ("The", " cat", " s", "at")
    span = SpanAttribution((attribution(tokens[:2], [1.0, 2.0]), attribution(tokens[:3], [1.0, 4.0, 9.0])), tokens)
    view = bars(span)
    table: Any = view.exports[".csv"]()
    assert view.title == span.title and len(pd.read_csv(StringIO(table))) == 5
    assert widths(drawn(span.summed)) == [6.0, 2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top=0 must be at least 1"),
        ({"order": "size"}, "order='size'"),
        ({"confidence": 95}, "confidence=95 must be between 0 and 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bars(attribution(), **options)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"heta-lens\[plots\]"):
        bars(attribution())
