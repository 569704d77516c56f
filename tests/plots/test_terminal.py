"""An attribution in a terminal."""

import re
from dataclasses import replace

import torch

from helpers.printing import printed
from heta_lens import plots
from heta_lens.attribution import Attribution
from heta_lens.plots.colours import BLUE


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


def test_tokens_cannot_steer_a_terminal_and_no_colour_means_no_strips(attribution: Attribution) -> None:
    nasty = replace(attribution, tokens=("\x1b[31mred", *attribution.tokens[1:]))
    assert "\x1b[31mred" not in printed(nasty)[0]
    assert "\x1b" not in plots.page(nasty).fragment.split("<table>")[0]
    plain = printed(attribution, coloured=False)[1]
    assert "position" in plain
    assert "gate\n" not in plain


def test_the_list_is_in_the_order_of_the_top_for_signed_scores_too(attribution: Attribution) -> None:
    scores = torch.tensor([(-1.0) ** row * row for row in range(len(attribution))], dtype=torch.float64)
    signed = replace(attribution, scores=scores, signed=True, parts={})
    _, plain = printed(signed, top=4, coloured=False)
    rows = plain[plain.index("position") :].splitlines()[1:]
    assert [int(row.split()[0]) for row in rows if row.strip()] == [one.positions[0] for one in signed.top(4)]
    assert f"most against the target: {signed.tokens[int(scores.argmin())]!r}" in plain
