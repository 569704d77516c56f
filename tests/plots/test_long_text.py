"""Long texts: sentences that hold most of the score are shown, and the stretches between are folded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.padding import Padding

from helpers.attributions import attribution
from helpers.browser import needs_browser, run
from heta_lens import Attribution, plots
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots import coloured_text
from heta_lens.plots.coloured_text import ColouredText
from heta_lens.plots.html_page import page
from heta_lens.plots.latex import latex

WORDS = ("The", " wind", " turned", " in", " the", " dark", " evening", " and", " fell", ".")
SENTENCES = 40  # of ten tokens each


def long(scores: dict[int, float], words: Sequence[str] = WORDS, count: int = SENTENCES) -> Attribution:
    """Return a text of many sentences, with scores at some rows."""
    tokens = [*words, *[f" {word.strip()}" if not at else word for at, word in enumerate(words)] * (count - 1)]
    return attribution(tokens, [scores.get(row, 0.001) for row in range(len(tokens))])


def prompt(found: Attribution) -> Any:
    """Return the prompt as a terminal shows it."""
    parts: Any = plots.terminal(found)
    return next(part.renderable for part in parts.renderables if isinstance(part, Padding))


def test_pieces_are_sentences_and_parts_of_long_ones() -> None:
    assert coloured_text.pieces(long({})) == [row // 10 for row in range(400)]
    endless = long({}, words=WORDS[1:9])  # without a full stop
    assert coloured_text.pieces(endless) == [row // coloured_text.PIECE for row in range(320)]


def test_evidence_is_not_folded() -> None:
    found = coloured_text.folds(long({52: 5.0, 251: 5.0}), [305])
    assert [*found] == [range(50), range(60, 250), range(260, 300), range(310, 390)]


def test_white_space_ends_a_piece() -> None:
    lines = attribution(["One", " line", "\n", "\n", "Two", " lines", "\n", "Three"], [1.0] * 8)
    assert coloured_text.pieces(lines) == [0, 0, 0, 0, 1, 1, 1, 2]


def test_a_still_view_shows_what_holds_most_and_the_end() -> None:
    found = coloured_text.folds(long({52: 5.0, 251: 5.0}))
    assert [*found] == [range(50), range(60, 250), range(260, 390)]
    whole = 10 + 398 * 0.001
    assert found[range(60, 250)] == f"… 190 tokens, {0.19 / whole:.1%}"
    assert not coloured_text.folds(long({52: 5.0}, count=30))  # a short text is whole


def test_a_short_stretch_and_what_is_needed_for_most_of_the_score_are_not_folded() -> None:
    assert [*coloured_text.folds(long({5: 5.0, 25: 5.0}))] == [range(30, 390)]
    even = coloured_text.folds(long(dict.fromkeys(range(400), 1.0)))
    assert sum(map(len, even)) == 400 - 10 * (coloured_text.MOST + 1)


def test_hidden_tokens_open_no_piece() -> None:
    special = long({105: 9.0, 52: 5.0})
    special.special[105] = True
    assert range(60, 390) in coloured_text.folds(special)
    assert coloured_text.folds(special)[range(60, 390)] == "… 330 tokens, 2.3%"  # of all, those of special tokens too
    assert range(106, 390) in coloured_text.folds(special, special=True)


def test_figures_latex_and_terminal_leave_out_the_same() -> None:
    found = long({52: 5.0})
    shown = ColouredText.of(found)
    text = "".join(shown.all_tokens)
    assert text.count("… ") == 2 and " [… 330 tokens, 6.1%]" in text and len(shown.all_tokens) == len(found)
    assert text.count("wind") == 2 and latex(found).count("wind") == 2
    assert shown.tints[0] == shown.tints[60]
    printed = str(prompt(found))
    assert "\n… 330 tokens, 6.1%\n" in printed and printed.count("wind") == 2


@needs_browser
@pytest.mark.slow
def test_a_page_folds_and_unfolds(tmp_path: Path) -> None:
    told = run(
        page(long({52: 5.0, 251: -5.0}), marked=[205]).page,
        """
        const folds = () => $$(".fold").map(own => own.textContent);
        const seen = () => chips().filter(chip => chip.offsetParent).length;
        const first = folds(), before = seen();
        $$(".fold")[1].click();
        const second = folds();
        tick(0, false);
        const all = [folds().length, seen()];
        tick(0, true);
        const shares = $$(".share").map(own => own.textContent).filter(Boolean);
        return { first, before, second, all, again: folds().length, shares };
        """,
        tmp_path,
    )
    assert told["first"] == ["… 50 tokens, 0.5%", "… 140 tokens, 1.3%", "… 40 tokens, 0.4%", "… 130 tokens, 1.3%"]
    assert told["before"] == 40 and told["second"] == [told["first"][at] for at in (0, 2, 3)]
    assert told["all"] == [0, 400] and told["again"] == 4
    assert told["shares"] == ["48.2%", "48.2%"]


@needs_browser
@pytest.mark.slow
def test_what_was_not_measured_alone_is_marked(tmp_path: Path) -> None:
    searched = long({52: 5.0}, count=2)
    searched = replace(searched, diagnostics=Diagnostics.of({"masked_together": ((0, 10, 0.02), (12, 14, 0.01))}))
    script = """
    const overview = card(), of = name => chips().flatMap((chip, at) => chip.matches(name) ? [at] : []);
    point(chips()[3]);
    return [of(".m"), of(".now"), overview, card(), $(".scale").textContent];
    """
    marked, now, overview, card, legend = run(page(searched).page, script, tmp_path)
    assert marked == [*range(10), 12, 13] and now == [*range(10)]
    assert "Highest of 10 tokens and spans" in overview and "positions 0–9" in card and "0.01" in card
    printed = prompt(searched)
    assert [str(printed)[span.start : span.end] for span in printed.spans if "italic" in span.style][2] == " turned"
    assert "not measured alone" in card and "dotted: not measured alone" in legend
