"""An attribution as a page that needs nothing else."""

import re
from dataclasses import replace
from html import unescape

from helpers.attributions import of_chat
from helpers.printing import printed
from heta_lens import plots
from heta_lens.attribution import Attribution


def test_a_page_holds_all_of_it_and_needs_nothing(attribution: Attribution) -> None:
    view = plots.page(attribution, marked=[2], note="a < b")
    page = view.fragment
    assert "<script" not in page
    assert "http" not in page
    assert "a &lt; b" in page
    assert page.count("class=marked") == 4
    for values in (attribution.scores, *attribution.parts.values()):
        for position, value in enumerate(values.tolist()):
            assert f'title="{position}: {value:.4g}"' in page
    strips = re.findall(r'<div class="tokens">(.*?)</div>', page, re.DOTALL)
    assert [unescape(re.sub("<.*?>", "", strip)) for strip in strips] == ["".join(attribution.tokens)] * 4


def test_a_page_of_a_chat_begins_with_its_messages(attribution: Attribution) -> None:
    page = plots.page(of_chat()).fragment
    assert page.index("<h2>messages</h2>") < page.index("<h2>score</h2>") and page.count('class="message') == 4
    assert "<h2>messages</h2>" not in plots.page(attribution).fragment


def test_what_tokens_say_cannot_break_a_page(attribution: Attribution) -> None:
    nasty = replace(attribution, tokens=("</div><script>alert(1)</script>", *attribution.tokens[1:]))
    assert "<script" not in plots.page(nasty).fragment
    assert "[bold]" in printed(replace(attribution, tokens=("[bold]", *attribution.tokens[1:])))[1]


def test_neither_escapes_nor_markup_reach_a_terminal_or_a_page(attribution: Attribution) -> None:
    hostile = ["\x1b[2J", "\x9b31m", "\u202e", "[red]", "\x07", "\x7f"]
    tokens = (*hostile, *attribution.tokens[len(hostile) :])
    made = replace(attribution, tokens=tokens, method="\x1b]0;x\x07[bold]", parts={"\x1b[1m[red]a": attribution.scores})
    _, plain = printed(made, top=len(made))
    for shown in (plain, plots.page(made).fragment):
        assert not set(shown) & set("\x1b\x9b\u202e\x07\x7f")
        assert all(seen in shown for seen in ("␛[2J", r"\x9b31m", r"\u202e", "[red]", "␇", "␡", "[bold]", "␛[1m[red]a"))
