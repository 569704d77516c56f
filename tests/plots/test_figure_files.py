"""Figures as files, and what of a text can be drawn."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.t2CharStringPen import T2CharStringPen
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, pyplot
from matplotlib.figure import Figure

from heta_lens._util import python
from heta_lens.plots import figures
from heta_lens.plots.figures import BASE, colour_map, colours_of, drawable, exports_of, families, looks, named
from heta_lens.plots.scales import BLUE, ORANGE

NOBODYS, RARE = "\U000f1234", "\U00018b00"  # for private use; and of a script that few fonts have
CACHES = (figures._drawable, figures._family, figures._installed, figures._characters)


def line(text: str = "a $x_1$ b") -> Figure:
    with looks([text]):
        figure = Figure(figsize=(2, 1))
        figure.subplots().set_title(text)
    return figure


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_every_kind_of_file_is_itself_and_the_same_each_time(suffix: str, start: bytes) -> None:
    make = exports_of(line)[suffix]
    assert make().startswith(start) and make() == make()
    assert not re.search(rb"CreationDate|dc:date|Software|matplotlib v", make(), re.IGNORECASE)


@pytest.mark.thorough
def test_files_do_not_depend_on_the_process() -> None:
    code = "from matplotlib.figure import Figure\nfrom heta_lens.plots.figures import exports_of, looks\n"
    code += "from hashlib import sha256\n"
    code += "def draw():\n figure = Figure()\n figure.subplots().set_title('A title')\n return figure\n"
    code += "print([sha256(make()).hexdigest() for make in exports_of(draw).values()])"
    results = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(results) == 1 and "'" in results.pop()


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
    assert families([shown]) == [BASE]


def test_tokens_are_named_in_quotes_and_cut() -> None:
    assert named(" a\n") == r"' a\n'"
    assert named("x" * 30) == "'" + "x" * 22 + "…"
    assert len(named("x" * 22)) == 24


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
    assert families([f"a{RARE}"]) == [BASE, "A Rare"]
    files = {suffix: make() for suffix, make in exports_of(lambda: line(f"a{RARE}")).items()}
    assert b"+Rare" in files[".pdf"]
    assert (b"/FontFile2" in files[".pdf"]) == (rare_font == "truetype"), "others cannot be embedded as TrueType"
    assert files[".png"] != exports_of(lambda: line("a"))[".png"]()


def test_no_font_of_boxes_counts() -> None:
    assert not [name for name in figures._installed() if "Last" in name or name.startswith("cm")]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = exports_of(line)
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"a figure needs matplotlib, .*pip install 'heta-lens\[plots\]'"):
        exports[".png"]()


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
    shades = [view(colour) for colour in colour_map(BLUE, ORANGE, signed=True)(torch.linspace(0, 1, 101).numpy())]
    below, above = shades[50::-1], shades[50:]
    for side in (below, above):
        assert all(luminance(next_) < luminance(own) for own, next_ in pairwise(side))
    assert shades[0][2] < 0.3 < 0.7 < shades[-1][2], "the ends differ in blue, which every eye distinguishes"


def test_the_scale_ends_where_all_views_end_it() -> None:
    signed = colours_of(torch.tensor([[1.0, -9.0], [2.0, 0.0]]), end=4.0)
    assert (signed["norm"].vmin, signed["norm"].vmax) == (-4, 4)
    assert signed["cmap"](0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    unsigned = colours_of(torch.tensor([1.0, 9.0]), end=2.0)
    assert (unsigned["norm"].vmin, unsigned["norm"].vmax) == (0, 2)
    assert unsigned["cmap"](0.0)[:3] == (1, 1, 1)
