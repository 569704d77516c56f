"""An attribution as a page that needs nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers import chats
from helpers.asking import cache_of
from helpers.attributions import SCORES, of_chat
from helpers.attributions import attribution as plain
from helpers.pages import chips, data, depths, evidence, strip, text, values, written
from helpers.printing import printed
from heta_lens import attribute_span, chat, plots
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.scales import score_formula
from heta_lens.span_attribution import SpanAttribution

LIMIT = 60_000  # bytes of a page of 500 tokens, each with four values and two errors


def test_a_page_has_all_tokens_and_values_and_needs_nothing(attribution: Attribution) -> None:
    view = plots.page(attribution, marked=[2], note="a < b")
    assert "http" not in view.page and "a &lt; b" in view.page and view.title == attribution.title
    assert text(view) == attribution.text.strip() or text(view) == attribution.text
    assert len(chips(view)) == len(attribution) and len(evidence(view)) == 1
    shown = values(view)
    assert [*shown] == ["score", *attribution.parts]
    for name, own in {"score": attribution.scores, **attribution.parts}.items():
        assert shown[name] == own.float().tolist()


def test_colour_is_deepest_at_the_largest_score_and_tells_signs_apart() -> None:
    assert depths(plots.page(written(["a", "b", "c", "d"], [0.0, 4.0, -2.0, 1.0]))) == [0.0, 1.0, -0.5, 0.25]


def test_one_outlier_does_not_bleach_the_rest() -> None:
    assert depths(plots.page(written(["a", "b", "c"], [1.0, 100.0, 2.0]))) == [0.25, 1.0, 0.5]


def test_special_tokens_are_switched_off_and_what_they_hold_is_said_below() -> None:
    for special in (False, True):
        view = plots.page(plain(), special=special)
        assert (data(view)["hidden"], data(view)["hidden_name"]) == ([0], "special tokens")
        assert data(view)["special"] is special and values(view)["score"] == list(SCORES)
        assert depths(view)[:3] == ([1.0, 0.08, 0.5] if special else [0.0, 0.17, 1.0])
        assert view.fragment.count("holds 47% of the score") == 1
        assert view.fragment.index('class="strip"') < view.fragment.index("holds 47% of the score")
    chat_page = plots.messages(of_chat())
    assert (data(chat_page)["hidden"], data(chat_page)["hidden_name"]) == ([0, 3, 5], "the chat template")
    assert "tokens of the chat template hold 57% of the score" in chat_page.fragment
    assert depths(chat_page) == [0.0, 0.17, 1.0, 0.0, 0.67, 0.0]


def test_a_first_word_that_is_a_sink_stays_and_colours_are_scaled_to_the_others() -> None:
    view = plots.page(written(["The", " cat", " sat"], [9.0, 2.0, 1.0]))
    assert depths(view) == [1.0, 1.0, 0.5] and data(view)["first"] == [0] and data(view)["hidden"] == []
    assert "&#39;The&#39; (first token) holds 75% of the score: attention sink" in view.fragment


def test_the_last_token_of_the_prompt_is_known_to_the_page() -> None:
    assert data(plots.page(plain()))["last"] == 5
    assert data(plots.page(plain().without([5])))["last"] is None
    steps = [written(["a", " b", " c", " d"][:length]) for length in (2, 3)]
    assert data(plots.page(SpanAttribution(tuple(steps), ("a", " b", " c", " d"))))["last"] == 1


def test_no_token_of_an_answer_is_hidden() -> None:
    special = torch.tensor([True, False, False, True])
    steps = [written(["<s>", " a", " b", "</s>"][:n], special=special[:n]) for n in (2, 3, 4)]
    span = SpanAttribution(tuple(steps), ("<s>", " a", " b", "</s>", "!"))
    assert data(plots.page(span))["hidden"] == [0]


def test_the_formula_is_said_where_it_makes_the_score(attribution: Attribution) -> None:
    assert data(plots.page(attribution))["values"][0]["what"].endswith(f"; {score_formula(attribution)}")
    other = replace(attribution, scores=attribution.scores.flip(0))
    assert "gate" not in data(plots.page(other))["values"][0]["what"]


def test_a_page_of_a_chat_has_a_bar_for_each_message(attribution: Attribution) -> None:
    view = plots.page(of_chat())
    assert re.findall(r'data-message="(\d)"><span>(\w+)<', strip(view)) == [("0", "user"), ("1", "assistant")]
    assert data(view)["units"]["messages"]["roles"] == ["user", "assistant", "user", "template"]
    assert "messages" not in data(plots.page(attribution))["units"] and "role" not in strip(plots.page(attribution))


def test_messages_colours_by_message() -> None:
    assert data(plots.messages(of_chat()))["by"] == "messages" and data(plots.page(of_chat()))["by"] == "tokens"
    with pytest.raises(ValueError, match=r"\.png"):
        plots.messages(of_chat()).save("messages.png")  # which would show no messages
    with pytest.raises(ValueError, match="knows no messages"):
        plots.messages(plain())


def test_messages_of_a_span_are_shown_by_all_of_its_targets() -> None:
    made = chat(chats.bridge(), chats.CHAT)
    longer = made.followed_by(chats.tokenizer("qwen2.5").encode("On the cat", add_special_tokens=False))
    span = attribute_span(cache_of(chats.bridge(), longer.tokens), len(made), tokens=longer, method="recency")
    view = plots.messages(span)
    assert view.title == span.title and data(view)["units"]["messages"]["roles"][-1] == "template"
    assert values(view)["all targets"][: len(made)] == span.total.float().tolist()
    assert not any(values(view)["all targets"][len(made) :])


@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.tex", "x.svg"])
def test_a_view_can_be_saved_as_other_things(name: str, tmp_path: Path, attribution: Attribution) -> None:
    for made in (attribution, SpanAttribution((attribution,), (*attribution.tokens, " end"))):
        assert made.plot().save(tmp_path / name).read_text(encoding="utf-8").strip()


def test_what_tokens_say_cannot_break_a_page(attribution: Attribution) -> None:
    hostile = "</div></script><script>alert(1)</script>\x1b[2J\u202e"
    view = plots.page(written([hostile, "<b>", "&amp;"], target_text=hostile, method=hostile), note=hostile)
    clean = plots.page(written(["a", "b", "c"]))
    for mark in ("<script", "</script", "<b", "</div"):
        assert view.page.count(mark) == clean.page.count(mark)
    assert not set(view.page) & set("\x1b\u202e") and chips(view)[2] == "&amp;"
    assert "[bold]" in printed(replace(attribution, tokens=("[bold]", *attribution.tokens[1:])))[1]


def test_what_messages_say_cannot_break_a_page() -> None:
    hostile = "</div><script>alert(1)</script>\x1b[2J\u202e"
    messages = replace(of_chat().messages, roles=(hostile, "b", "c"))
    page = plots.messages(replace(of_chat(), messages=messages, target_text=hostile)).fragment
    plain = plots.messages(of_chat()).fragment
    for mark in ("<script", "http", "<b>", "</div>", "<s>"):
        assert page.count(mark) == plain.count(mark)
    assert not set(page) & set("\x1b\u202e")


def test_neither_escapes_nor_markup_reach_a_terminal_or_a_page() -> None:
    hostile = ["\x1b[2J", "\x9b31m", "\u202e", "[red]", "\x07", "\x7f"]
    made = written([*hostile, *"abcdef"], method="\x1b]0;x\x07[bold]")
    made = replace(made, parts={"\x1b[1m[red]a": made.scores})
    _, terminal = printed(made, top=len(made))
    for shown in (terminal, plots.page(made).fragment):
        assert not set(shown) & set("\x1b\x9b\u202e\x07\x7f")
        assert all(mark in shown for mark in ("␛[2J", r"\x9b31m", r"\u202e", "[red]", "␇", "␡", "[bold]", "␛[1m[red]a"))


def test_a_page_of_500_tokens_is_small() -> None:
    made = written([f" word{number % 90}" if number % 12 else "." for number in range(500)])
    parts = {name: made.scores * factor for name, factor in (("gate", 3), ("curvature", 5), ("information", 7))}
    errors = Diagnostics.of({"standard_errors": {"scores": made.scores, "curvature": made.scores}})
    view = replace(made, parts=parts, diagnostics=errors).plot()
    assert len(chips(view)) == 500 and len(view.page.encode()) < LIMIT
    assert data(view)["values"][2]["errors"] is not None


def test_half_precision_scores_are_shown() -> None:
    made = written(["a", "b"], [0.5, 2.0])
    assert values(replace(made, scores=made.scores.to(torch.bfloat16)).plot())["score"] == [0.5, 2.0]
