"""Figures: bars, matrices, files with the same bytes every time, and the characters that fonts have."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from helpers.attributions import attribution, uncertain
from heta_lens import Attribution, SpanAttribution
from heta_lens._util import python
from heta_lens.causal import Grid
from heta_lens.plots.figures import (
    BASE_FONT,
    bar_figure,
    colours_of,
    drawable,
    exports_of,
    figure_style,
    matrix,
    pair_figure,
    patch_grid,
    span_figure,
    token_figure,
)
from heta_lens.plots.latex import escaped, latex
from heta_lens.plots.scales import ColouredScores, shade_of, tint


def line(text: str = "a $x_1$ b") -> Figure:
    with figure_style([text]):
        figure = Figure(figsize=(2, 1))
        figure.subplots().set_title(text)
    return figure


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_every_kind_of_file_is_itself_and_the_same_each_time(suffix: str, start: bytes) -> None:
    make = exports_of(line)[suffix]
    made = make()
    assert made.startswith(start) and made == make()
    assert not re.search(rb"CreationDate|dc:date|Software|matplotlib v", made, re.IGNORECASE)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a_$\\ é", " a_$\\ é"),
        ("a\n\tb", "a⏎→b"),
        ("a\U000f1234", "a⟨U+F1234⟩"),
        ("\u202e\x1b\ud800", "⟨U+202E⟩⟨U+001B⟩⟨U+D800⟩"),
        ("\u200d", "⟨U+200D⟩"),
        ("ש\u200dל", "ש\u200dל"),
        ("", ""),
    ],
)
def test_what_cannot_be_drawn_is_written_as_its_number(text: str, shown: str) -> None:
    assert drawable(text) == shown
    with figure_style([shown]):
        assert matplotlib.rcParams["font.family"] == [BASE_FONT]


# ------------------------------------------------------------------------------------------------------------- colours
def luminance(colour: Any) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_black_is_read_on_every_tint() -> None:
    """The contrast of WCAG 2; the deepest colours need to be lighter for that."""
    shades = [shade_of(step / 100) for step in range(-100, 101)]
    contrasts, untinted = (
        [(luminance([part / 255 for part in one]) + 0.05) / 0.05 for one in made]
        for made in (map(tint, shades), shades)
    )
    assert min(contrasts) >= 4.5 > min(untinted) and contrasts[100] == 21


def as_seen_without_green_cones(colour: Any) -> list[float]:
    """Deuteranopia, after Machado, Oliveira and Fernandes (2009)."""
    rows = [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)]
    return [sum(weight * part for weight, part in zip(row, colour[:3], strict=True)) for row in rows]


@pytest.mark.parametrize("view", [list, as_seen_without_green_cones])
def test_colours_get_darker_away_from_0_and_their_ends_differ(view: Callable[[Any], list[float]]) -> None:
    shades = [
        view(colour) for colour in colours_of(torch.tensor([-1.0]), end=1.0)["cmap"](torch.linspace(0, 1, 101).numpy())
    ]
    below, above = shades[50::-1], shades[50:]
    for side in (below, above):
        assert all(luminance(next_) < luminance(own) for own, next_ in pairwise(side))
    assert shades[0][2] < 0.3 < 0.7 < shades[-1][2], "the ends differ in blue, which every eye distinguishes"


# ----------------------------------------------------------------------------------------------------------- bar figure


def drawn(shown: Attribution, top: int = 20, *, special: bool = True) -> Figure:
    figure = bar_figure(shown, top, special=special)
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
    assert labels(figure) == ["'<bos>'  0", "' cat'  2", "'at'  4", "' s'  3"]
    assert widths(figure) == [6.0, 3.0, 2.0, -4.0]
    held = "'<bos>' (first token, special) holds"
    assert f"the 4 of 6 tokens with the largest scores; {held} 38% of the score" in texts(figure)
    assert f"all 6 tokens; {held} 47% of the score" in texts(drawn(attribution()))
    low, high = figure.axes[0].get_ylim()
    assert low > high, "the first on top"
    assert figure.axes[0].get_xlabel() == "score of heta; below 0 against the target"
    assert labels(drawn(attribution(scores=[0, 1000, 3, 6, 0, 0]))) == ["'The'  1", "' s'  3"], "no empty bars"


def test_a_scale_names_method_and_unit() -> None:
    signed = attribution(method="leave_one_out", options={"effect": "log_prob", "mask": "zero"}, signed=True)
    named = "score of leave_one_out in nats"
    assert drawn(signed).axes[0].get_xlabel() == named
    assert any(text.startswith(f"{named}, blue for the target") for text in texts(token_figure(signed)))
    assert escaped(f"{named}, blue for the target") in latex(signed)
    steps = SpanAttribution((signed, signed), (*signed.tokens, "a"))
    assert named in texts(span_figure(steps, special=False))
    assert any(text.startswith("score of heta, no direction") for text in texts(token_figure(attribution())))


def test_the_axis_goes_to_the_largest_score_but_that_of_a_sink() -> None:
    made = attribution(["The", " cat", " sat", "."], [9.0, 2.0, 1.0, -1.0], signed=True)
    figure: Any = drawn(made)
    low, high = figure.axes[0].get_xlim()
    assert 2 < high < 3 and -2 < low < -1 and "9" in texts(figure)
    assert labels(figure)[0] == "'The'  0"
    assert any("'The' (first token) holds 69% of the score: attention sink" in text for text in texts(figure))


def test_a_sink_on_the_other_side_of_0_is_seen() -> None:
    figure: Any = drawn(attribution(["The", " cat", " sat", "."], [-9.0, 2.0, 1.0, 0.5], signed=True))
    low, high = figure.axes[0].get_xlim()
    assert low < -0.3 and 2 < high < 3 and "-9" in texts(figure)
    alone = drawn(attribution(["The", " cat", " sat"], [-9.0, 0.0, 0.0], signed=True))
    assert alone.axes[0].get_xlim()[0] < -9


def test_a_legend_without_a_shown_score_is_no_invention() -> None:
    shown = ColouredScores(attribution(scores=[5.0, 0, 0, 0, 0, 0]), special=False)
    assert shown.end == 5 and shown.share(shown.end) == "100.0% of the score"
    assert ColouredScores(attribution(scores=[0.0] * 6), special=False).share(1.0) == "0.0% of the score"


def test_error_bars_are_the_interval() -> None:
    shown = uncertain()
    figure = drawn(shown)
    (lines,) = (item for item in figure.axes[0].collections if isinstance(item, LineCollection))
    ends = torch.tensor([[segment[0][0], segment[1][0]] for segment in lines.get_segments()])
    highest = shown.scores.argsort(descending=True)
    low, high = (end[highest] for end in shown.interval())
    torch.testing.assert_close(ends, torch.stack([low, high], 1), check_dtype=False)
    assert "score of heta, with its 95% confidence interval" in texts(figure)


# -------------------------------------------------------------------------------------------------------- matrix figure
TOKENS = ("The", " cat", "\n", " $s_1$", " at", " 🎉")


def span(first: int = 3, tokens: tuple[str, ...] = TOKENS) -> SpanAttribution:
    steps = [attribution(tokens[:end], range(1, end + 1), target_text=tokens[end]) for end in range(first, len(tokens))]
    return SpanAttribution(tuple(steps), tokens)


def pairs(**changes: Any) -> Any:
    values = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
    return attribution(["a", " b", " b"], [1.0, 2.0, 3.0], **{"interactions": values, **changes})


def shown_values(figure: Any) -> Any:
    return np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)


def both_labels(figure: Any) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    figure.draw_without_rendering()
    return [text.get_text() for text in axes.get_xticklabels()], [text.get_text() for text in axes.get_yticklabels()]


def test_a_span_is_targets_by_sources() -> None:
    figure: Any = span_figure(span(), special=False)
    nan = np.nan
    np.testing.assert_array_equal(
        shown_values(figure), [[1, 2, 3, nan, nan], [1, 2, 3, 4, nan], [1, 2, 3, 4, 5]]
    )  # fmt: skip
    across, down = both_labels(figure)
    assert across == ["The", "cat", r"'\n'", "$s_1$", "at"]
    assert down == ["$s_1$", "at", "⟨U+1F389⟩"]
    assert figure.axes[0].lines[0].get_xdata()[0] == 2.5, "where the answer begins"
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("source", "target")
    low, high = figure.axes[0].get_ylim()
    assert low > high, "the first target on top"
    assert not span_figure(span(len(TOKENS) - 1), special=False).axes[0].lines


def test_pairs_are_symmetric_around_0() -> None:
    figure: Any = pair_figure(pairs(), special=False)
    values, nan = shown_values(figure), np.nan
    np.testing.assert_array_equal(values, [[nan, 1, 2], [1, nan, 3], [2, 3, nan]])
    assert both_labels(figure) == (["a", "b", "b"], ["a", "b", "b"])
    box = figure.axes[0].get_window_extent()
    assert box.width == pytest.approx(box.height, rel=0.2)
    signed: Any = pair_figure(
        pairs(interactions=torch.tensor([[0.0, -2.0, 1], [-2.0, 0, 0], [1, 0, 0]])), special=False
    )
    norm = signed.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (-2, 2)


def patched(values: torch.Tensor) -> Grid:
    return Grid("patching", values, ("a", "<b>"), 5.0, 1.0, forwards=6, layers=(0, 1), columns=(0, 1))


def test_a_grid_has_layer_0_on_top_and_is_what_a_grid_of_patches_is_saved_as() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    figure = patch_grid("patching", values, (0, 3), ("a", " $b"), note="0 is −1")
    np.testing.assert_array_equal(shown_values(figure), values.numpy())
    assert both_labels(figure) == (["a", "$b"], ["0", "3"])
    view = patched(values).plot()
    assert set(view.exports) == {".svg", ".png", ".pdf"}
    assert view.exports[".png"]() == view.exports[".png"]()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(
        "patching", torch.eye(2), ("a", "b"), clean=5.0, corrupted=1.0, forwards=6, layers=(0, 1), columns=(0, 1)
    )
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    for make in (
        lambda: matrix(span()),
        lambda: patch_grid("a", torch.eye(2), (0, 1), "ab"),
        grid.plot().exports[".svg"],
    ):
        with pytest.raises(ImportError, match=r"\.\[plots\]"):
            make()
