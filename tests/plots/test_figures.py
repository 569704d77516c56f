"""Figures: bars, matrices, files with the same bytes every time, and the characters that fonts have."""

import base64
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.t2CharStringPen import T2CharStringPen
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, pyplot
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from helpers.attributions import attribution, double, uncertain
from heta_lens import Attribution, SpanAttribution, plots
from heta_lens._util import python
from heta_lens.causal import Grid
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots import figures
from heta_lens.plots.figures import (
    BASE_FONT,
    Side,
    bar_figure,
    bar_rows,
    bars,
    colours_of,
    counting_terms,
    drawable,
    exports_of,
    figure_style,
    map_figure,
    matrix,
    pair_map,
    patch_grid,
    span_map,
)

# --------------------------------------------------------------------------------------------------------- figure files
NOBODYS, RARE = "\U000f1234", "\U00018b00"  # for private use; and of a script that few fonts have
CACHES = (figures._drawable, figures._font_of, figures._upright_fonts, figures._characters)


def families(texts: list[str]) -> list[str]:
    with figure_style(texts):
        return [*matplotlib.rcParams["font.family"]]


def line(text: str = "a $x_1$ b") -> Figure:
    with figure_style([text]):
        figure = Figure(figsize=(2, 1))
        figure.subplots().set_title(text)
    return figure


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_every_kind_of_file_is_itself_and_the_same_each_time(suffix: str, start: bytes) -> None:
    make = exports_of(line)[suffix]
    assert make().startswith(start) and make() == make()
    assert not re.search(rb"CreationDate|dc:date|Software|matplotlib v", make(), re.IGNORECASE)


def test_text_needs_no_font_where_it_is_opened() -> None:
    exports = exports_of(line)
    assert b"<text" not in exports[".svg"]() and b"<path" in exports[".svg"]()
    assert b"/FontFile2" in exports[".pdf"]() and b"/Type3" not in exports[".pdf"]()


def test_nothing_is_read_as_mathematics() -> None:
    with matplotlib.rc_context({"text.parse_math": True}):
        figure: Any = line("$\\frac$")  # which would be an error
        exports_of(lambda: figure)[".png"]()
    assert not figure.axes[0].title.get_parse_math()


def test_files_are_of_the_same_kind_whatever_the_user_has_set() -> None:
    plain = {suffix: make() for suffix, make in exports_of(line).items()}
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 3, "font.family": ["serif"]}):
        assert {suffix: make() for suffix, make in exports_of(line).items()} == plain
    assert not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a_$\\ é", " a_$\\ é"),
        ("a\n\tb", "a⏎→b"),
        (f"a{NOBODYS}", "a⟨U+F1234⟩"),
        ("\u202e\x1b\ud800", "⟨U+202E⟩⟨U+001B⟩⟨U+D800⟩"),
        ("\u200d", "⟨U+200D⟩"),
        ("ש\u200dל", "ש\u200dל"),
        ("", ""),
    ],
)
def test_what_cannot_be_drawn_is_written_as_its_number(text: str, shown: str) -> None:
    assert drawable(text) == shown
    assert families([shown]) == [BASE_FONT]


@pytest.fixture(params=["truetype", "postscript"])
def rare_font(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An installed font that has the rare character."""
    path = tmp_path / "font"
    made(postscript=request.param == "postscript").save(path)
    before = [*font_manager.fontManager.ttflist]
    font_manager.fontManager.addfont(path)
    forget()
    yield request.param
    font_manager.fontManager.ttflist[:] = before
    forget()


def forget() -> None:
    for cached in CACHES:
        cached.cache_clear()
    manager: Any = font_manager.fontManager
    manager._findfont_cached.cache_clear()


def made(*, postscript: bool) -> FontBuilder:
    font = FontBuilder(1000, isTTF=not postscript)
    font.setupGlyphOrder([".notdef", "rare"])
    font.setupCharacterMap({ord(RARE): "rare"})
    pens: dict[str, Any] = {
        name: T2CharStringPen(1000, None) if postscript else TTGlyphPen(None) for name in (".notdef", "rare")
    }
    pens["rare"].moveTo((100, 0))
    for corner in [(900, 0), (500, 800)]:
        pens["rare"].lineTo(corner)
    pens["rare"].closePath()
    if postscript:
        font.setupCFF("Rare", {}, {name: pen.getCharString() for name, pen in pens.items()}, {})
    else:
        font.setupGlyf({name: pen.glyph() for name, pen in pens.items()})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "rare": (1000, 100)})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "A Rare", "styleName": "Regular", "psName": "Rare"})
    font.setupOS2(usWeightClass=400)
    font.setupPost()
    return font


def test_a_character_is_drawn_with_whichever_installed_font_has_it(rare_font: str) -> None:
    assert drawable(f"a{RARE}") == f"a{RARE}"
    assert families([f"a{RARE}"]) == [BASE_FONT, "A Rare"]
    files = {suffix: make() for suffix, make in exports_of(lambda: line(f"a{RARE}")).items()}
    assert b"+Rare" in files[".pdf"]
    assert (b"/FontFile2" in files[".pdf"]) == (rare_font == "truetype"), "others cannot be embedded as TrueType"
    assert files[".png"] != exports_of(lambda: line("a"))[".png"]()


@pytest.mark.slow
def test_importing_the_plots_does_not_import_matplotlib() -> None:
    code = "import sys, heta_lens.plots; raise SystemExit('matplotlib.figure' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------------------------- colours
def luminance(colour: Any) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


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


def drawn(
    shown: Attribution, top: int = 20, confidence: float = 0.95, order: Any = "score", *, special: bool = True
) -> Figure:
    rows = bar_rows(shown, top, order, ~shown.hidden | special)
    figure = bar_figure(shown, rows, confidence, special=special)
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


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_error_bars_are_the_interval(confidence: float) -> None:
    shown = uncertain()
    figure = drawn(shown, confidence=confidence, order="text")
    (lines,) = (item for item in figure.axes[0].collections if isinstance(item, LineCollection))
    ends = torch.tensor([[segment[0][0], segment[1][0]] for segment in lines.get_segments()])
    low, high = shown.interval(confidence)
    torch.testing.assert_close(ends, torch.stack([low, high], 1), check_dtype=False)
    assert f"score, with its {confidence:.0%} confidence interval" in texts(figure)


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
    terms = counting_terms(shown)
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
    assert counting_terms(shown) == {}
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
    figure: Any = map_figure(span_map(span()))
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
    assert not map_figure(span_map(span(len(TOKENS) - 1))).axes[0].lines


def test_pairs_are_symmetric_around_0() -> None:
    figure: Any = map_figure(pair_map(pairs()))
    values, nan = shown_values(figure), np.nan
    np.testing.assert_array_equal(values, [[nan, 1, 2], [1, nan, 3], [2, 3, nan]])
    assert both_labels(figure) == (["a", "b", "b"], ["a", "b", "b"])
    box = figure.axes[0].get_window_extent()
    assert box.width == pytest.approx(box.height, rel=0.2)
    signed: Any = map_figure(pair_map(pairs(interactions=torch.tensor([[0.0, -2.0, 1], [-2.0, 0, 0], [1, 0, 0]]))))
    norm = signed.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (-2, 2)


def test_the_attribution_is_left_as_it_was() -> None:
    own = pairs()
    matrix(own)
    assert own.interactions.isfinite().all()


def test_special_tokens_have_no_column_unless_they_are_wanted() -> None:
    tokens = ("<bos>", "The", " cat", " at")
    shown: Any = map_figure(span_map(span(2, tokens)))
    assert both_labels(shown)[0] == ["The", "cat"] and shown.axes[0].lines[0].get_xdata()[0] == 0.5
    assert shown_values(shown).shape == (2, 2) and "'<bos>' (first token, special) holds" in shown.get_supxlabel()
    assert both_labels(map_figure(span_map(span(2, tokens), special=True)))[0] == ["<bos>", "The", "cat"]
    special = torch.tensor([True, False, False])
    assert both_labels(map_figure(pair_map(pairs(special=special)))) == (["b", "b"], ["b", "b"])
    assert both_labels(map_figure(pair_map(pairs(special=special), special=True)))[0] == ["a", "b", "b"]


def test_the_colours_of_a_span_are_scaled_to_others_than_a_sink() -> None:
    steps = [attribution(TOKENS[:end], [50.0, *range(1, end)], target_text=TOKENS[end]) for end in (3, 4)]
    image: Any = map_figure(span_map(SpanAttribution(tuple(steps), TOKENS[:5]))).axes[0].images[0]
    assert image.norm.vmax == 3 and image.colorbar.extend == "max"


def test_what_has_no_matrix_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="no pairs of tokens: give attribute interactions=True, or use attribute_span"):
        matrix(attribution())


def test_values_beyond_the_scale_have_an_arrow() -> None:
    beyond = torch.tensor([[1.0, 9.0, -1.0]])

    def arrow(values: Any) -> str:
        figure: Any = patch_grid("a", values, [0], ["x", "y", "z"])
        return figure.axes[0].images[0].colorbar.extend

    assert arrow(beyond) == "max"
    assert arrow(-beyond) == "min"
    assert arrow(beyond.clamp(max=2)) == "neither"


def test_labels_get_smaller_and_then_fewer() -> None:
    side = Side("token", [f"t{at}" for at in range(100)], range(1000, 1100))
    few, small, thinned = (side.ticks(inches) for inches in (20.0, 10.0, 4.0))
    assert few[1:] == (side.labels, 7) and small[1:] == (side.labels, 6)
    rows, texts, size = thinned
    assert size == 7 and texts[:2] == ["t0  1000", "t3  1003"] and [*rows[:2]] == [0, 3]
    assert Side("layer", side.labels).ticks(4.0)[1][1] == "t3"


@pytest.mark.slow
def test_a_large_matrix_is_fast_and_small() -> None:
    tokens = tuple(f" w{at}" for at in range(1000))
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 8
    steps = [attribution(tokens[:end], scores[:end].tolist()) for end in range(800, 1000)]
    large = SpanAttribution(tuple(steps), tokens)
    start = process_time()
    view = matrix(large)
    assert process_time() - start < 3
    assert all(len(make()) < 2_000_000 for make in view.exports.values())
    assert view.exports[".svg"]().count(b"<image") <= 3, "no shape for every cell"  # pyright: ignore


def test_a_grid_has_layer_0_on_top_and_is_what_a_grid_of_patches_is_saved_as() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    figure = patch_grid("patching", values, (0, 3), ("a", " $b"), note="0 is −1")
    np.testing.assert_array_equal(shown_values(figure), values.numpy())
    assert both_labels(figure) == (["a", "$b"], ["0", "3"])
    grid = Grid("patching", values, ("a", "<b>"), clean=5.0, corrupted=1.0, forwards=6)
    view = grid.plot()
    assert set(view.exports) == {".svg", ".png", ".pdf"}
    assert view.exports[".png"]() == view.exports[".png"]()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid("patching", torch.eye(2), ("a", "b"), clean=5.0, corrupted=1.0, forwards=6)
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    for make in (
        lambda: matrix(span()),
        lambda: patch_grid("a", torch.eye(2), (0, 1), "ab"),
        grid.plot().exports[".svg"],
    ):
        with pytest.raises(ImportError, match=r"heta-lens\[plots\]"):
            make()
