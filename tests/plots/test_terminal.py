"""An attribution in a terminal."""

import re
from dataclasses import replace

import torch

from helpers.attributions import attribution as made_by_hand
from helpers.attributions import of_chat
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


def test_a_chat_has_a_table_of_its_messages() -> None:
    _, plain = printed(of_chat(signed=True))
    rows = [row.split() for row in plain[plain.index("message  role") :].splitlines()]
    assert rows == [
        ["message", "role", "share", "score", "text"],
        ["0", "user", "27.5%", "3.5", "'The", "cat'"],
        ["1", "assistant", "15.7%", "2", "'sat'"],
        ["2", "user", "0.0%", "0", "''"],
        ["template", "56.9%", "7.25"],
    ]
    assert "message  role" not in printed(made_by_hand())[1]


def test_a_message_cannot_steer_a_terminal() -> None:
    text = "<s>\x1b[2J\u202e\n]] [red]sat\n"
    made = replace(of_chat(), text=text, messages=replace(of_chat().messages, roles=("\x1b[1m", "[bold]", "c")))
    _, plain = printed(made, top=0)
    assert not set(plain) & set("\x1b\u202e")
    assert "␛[1m" in plain and "[bold]" in plain and r"'\x1b[2J\u202e\n]'" in plain


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
