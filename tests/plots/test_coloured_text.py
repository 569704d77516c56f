"""Tokens as coloured text: in a figure and in LaTeX."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from helpers.attributions import attribution
from heta_lens import Attribution, SpanAttribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.coloured_text import ColouredText
from heta_lens.plots.figures import WIDTH, drawable, exports_of, figure_style, laid_out, token_figure
from heta_lens.plots.latex import escaped, latex
from heta_lens.plots.titles_and_notes import headline

# --------------------------------------------------------------------------------------------------------- token figure
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


# ------------------------------------------------------------------------------------------------------------- drawing
@pytest.mark.parametrize("make", [attribution, hostile, span])
def test_a_figure_has_the_question_and_the_text_of_every_token(make: Any) -> None:
    shown = make()
    written = texts(token_figure(shown))
    assert drawable(f"{headline(shown.summed)}   heta") in written
    assert "".join(drawable(token.lstrip(" ") or token) for token in shown.tokens) in "".join(written)


def test_the_prediction_stands_at_the_end_with_its_probability() -> None:
    likely = attribution(diagnostics=Diagnostics.of({"target_log_prob": -0.5, "target_rank": 1}))
    assert "→ down 60.7%" in texts(token_figure(likely)) and "→ down" in texts(token_figure(attribution()))
    assert r"\ensuremath{\rightarrow}\ down\ 60.7\%" in latex(likely)
    assert not any("→" in text for text in texts(token_figure(span()))), "a span's own tokens are there"


@pytest.mark.usefixtures("looking")
def test_only_explained_tokens_of_an_answer_are_framed() -> None:
    first, last = (attribution(["a", " b", " c", " d"][:count], [1.0] * count) for count in (2, 4))
    shown = ColouredText.of(SpanAttribution((first, last), ("a", " b", " c", " d", " e")))
    assert shown.written == (" c", " d", " e") and shown.framed == {2, 4}


def test_the_space_before_a_token_has_no_colour() -> None:
    narrow, wide = ([*laid_out(tokens)] for tokens in (("a", "b"), ("a", "  b")))
    assert [piece.text for piece in wide] == ["a", "b"] and wide[1].width == pytest.approx(narrow[1].width, abs=0.5)
    assert wide[1].left > narrow[1].left + 5
    assert {piece.left for piece in laid_out([" word"] * 100) if piece.text == "word"} >= {0.0}, (
        "nor has a line's start"
    )
    (colour, text), _ = boxes(latex(attribution(["\n", "  b"], [1.0, 2.0])))[::-1]
    assert text == "b" and colour != "255,255,255"


def test_nothing_is_read_as_mathematics_or_leaks_into_pyplot() -> None:
    before, figure = pyplot.get_fignums(), token_figure(hostile())
    found: list[Any] = figure.findobj(Text)
    assert not any(text.get_parse_math() or text.get_usetex() for text in found if text.get_text())
    make = exports_of(lambda: token_figure(hostile()))[".svg"]
    assert make() == make()
    assert pyplot.get_fignums() == before


def test_backgrounds_are_the_scores() -> None:
    shown = attribution(["The", " cat", " s", "at", ".", "!"], [6.0, -0.5, 3.0, -6.0, 2.0, 0.0])
    colours = [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in grounds(token_figure(shown))]
    assert colours == ColouredText.of(shown).tints
    assert colours[5] == (255, 255, 255)


def test_special_tokens_have_no_colour_and_a_line_says_what_they_hold() -> None:
    shown = ColouredText.of(attribution())
    assert shown.tints[0] == (255, 255, 255) != shown.tints[2] and shown.end == 3
    held = "'<bos>' (first token, special) holds 47% of the score"
    assert held in texts(token_figure(attribution()))
    assert re.search(r"special.* holds.* 47\\%", latex(attribution()))
    whole = ColouredText.of(attribution(), special=True)
    assert whole.end == 6 and whole.tints[0] != (255, 255, 255)
    sunk = ColouredText.of(attribution(["The", " cat", " sat"], [9.0, 2.0, 1.0]))
    assert sunk.end == 2 and sunk.notes == ["'The' (first token) holds 75% of the score: attention sink"]


@pytest.mark.parametrize(("scores", "end"), [([2.0, -6.0, 2.0], 6), ([2.0, -9.0, 2.0], 4), ([0.0, 9.0, 0.0], 9)])
def test_a_scale_ends_at_the_largest_score_unless_one_token_holds_two_thirds(scores: list[float], end: float) -> None:
    shown = ColouredText.of(attribution(["a", " b", " c"], scores, signed=True))
    assert shown.end == end and shown.beyond.startswith("' b' at 1 is beyond") == (end == 4)
    assert ColouredText.of(attribution(["The", " cat", " sat"], [9.0, 4.0, 2.0])).end == 4, "a sink sets no scale"


@pytest.fixture
def looking() -> Iterator[None]:
    """Drawn as in files: letters are as wide as measured."""
    with figure_style():
        yield


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_figure_grows_with_the_text_and_nothing_is_outside_of_it(count: int) -> None:
    shown = attribution([f" word{at}" for at in range(count)], torch.rand(count).tolist())
    figure = token_figure(shown)
    assert figure.get_figwidth() * 72 == pytest.approx(WIDTH)
    heights = {1: (1, 1.4), 5: (1, 1.4), 100: (2.5, 5)}
    assert heights[count][0] < figure.get_figheight() < heights[count][1]
    figure.draw_without_rendering()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= figure.bbox.width + 1
        assert box.y0 >= 0 and box.y1 <= figure.bbox.height


# --------------------------------------------------------------------------------------------------------- latex tokens
HOSTILE_LATEX = (
    "$x_1$", "\n", "</script>", "a%b&c#d{e}~^\\", "\u202e", "\n\n", "\t", "  ", "\\input{x}", "^^41", "--", ",,", '"q"',
    "`a'", "x" * 120, " ?`!`", "[", "]", "", "é", "\\", "}", " end", "\n",
)  # fmt: skip
WRITTEN = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\char34{}": '"', r"\textquotesingle{}": "'",
    r"\textasciigrave{}": "`", r"-\kern0pt{}": "-", r",\kern0pt{}": ",", r"\hetanewline{}": "\n",
    r"\ensuremath{\rightarrow}": "\t",
}  # fmt: skip


def read(written: str) -> str:
    """What TeX would typeset, by its own rules for these commands; anything else that is special is refused."""
    commands = "|".join(map(re.escape, WRITTEN))
    text = ""
    for command, sign, plain in re.findall(rf"({commands})|\\([{{}}$&#_% ])|(.)", written, re.DOTALL):
        assert plain not in {*"\\{}$&#_%~^"}, f"{plain!r} is special in {written!r}"
        assert plain != " ", "TeX reads several spaces as one"
        text += WRITTEN.get(command, "") or sign or plain
    return text


def hostile_in_latex() -> Attribution:
    return attribution(
        HOSTILE_LATEX,
        [(-1) ** at * at / 3 for at in range(len(HOSTILE_LATEX))],
        signed=True,
        target_text="$_{\n",
        method="a_b",
    )


def span_with_line_end() -> SpanAttribution:
    tokens = ("The", " cat", " s", "at", "\n", " on")
    steps = [attribution(tokens[:end], range(1, end + 1)) for end in range(3, 6)]
    return SpanAttribution(tuple(steps), tokens)


def boxes(text: str) -> list[tuple[str, str]]:
    """The colour and the contents of every token's box, in the lines that have them, without the space before it."""
    start = r"^(?:\\hetaspace|\\hetainside)?(?:\\ )*"
    return re.findall(start + r"\\hetatoken\{([\d,]+)\}\{(.*)\}(?:%|\\newline|\\par.*)$", text, re.MULTILINE)


def test_every_ascii_character_is_escaped() -> None:
    printable = "".join(map(chr, range(32, 127)))
    assert read(escaped(printable)) == printable
    assert read(escaped(printable[::-1])) == printable[::-1]


def test_every_token_has_its_colour_and_its_text() -> None:
    shown = hostile_in_latex()
    found = boxes(latex(shown))
    bare = [token.lstrip(" ") or token for token in HOSTILE_LATEX]
    assert "".join(read(text) for _, text in found) == "".join(bare).replace("\u202e", "<U+202E>")
    assert r"\hetaspace\ \hetatoken" in latex(shown)
    plain = attribution()
    assert [colour for colour, _ in boxes(latex(plain))] == [
        f"{shade.red},{shade.green},{shade.blue}" for shade in ColouredText.of(plain).tints
    ]
    assert all(len(read(text)) <= 40 for _, text in found), "no line breaks in a box"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pdflatex", "lualatex"])
def test_it_compiles(engine: str, tmp_path: Path) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"{engine} is not installed")
    blank = [latex(attribution(target_text=text)) for text in ("\n", "  ", "\t", "\N{NO-BREAK SPACE}")]
    source = "\\documentclass{article}\\usepackage{xcolor}\\begin{document}%s\\end{document}"
    (tmp_path / "page.tex").write_text(
        source
        % "\n\nText.\n\n".join([latex(hostile_in_latex(), marked=range(4)), latex(span_with_line_end()), *blank]),
        encoding="utf-8",
    )
    options = ["-halt-on-error", "-interaction=nonstopmode"]
    done = subprocess.run(
        [engine, *options, "page.tex"], cwd=tmp_path, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0 and (tmp_path / "page.pdf").exists(), log[-2000:]
    assert "Overfull" not in log
