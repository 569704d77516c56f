"""Pages in a headless browser without network, light and dark: nothing fails, all is legible, and the switches work."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import heta_lens
from helpers.attributions import of_chat
from helpers.browser import DARK, needs_browser, run
from helpers.pages import chips, written
from heta_lens import plots
from heta_lens._util.html_view import View
from heta_lens.span_attribution import SpanAttribution

pytestmark = [needs_browser, pytest.mark.slow]

HOSTILE = ["<s>", "\n", "\n", "Hi", " </script><script>alert(1)</script>", "\t", " ", " مرحبا", " می‌خواهم", " 👨‍💻",
           "\u202eevil", "<b>&amp;", "\u200d", "\xa0", "<!--", " end"]  # fmt: skip
LEAST = 4.5
LEGIBLE = """
const shown = $$(".heta-view *").filter(element => element.textContent.trim() && !element.children.length
  && !element.matches("script, style, option") && element.offsetParent);
return Math.min(...shown.map(legibility));
"""


@cache
def views() -> dict[str, View]:
    words = [f" w{number}" + (".\n" if number == 19 else "") for number in range(40)]
    several = written(words, [float(number % 7 - 2) for number in range(40)], signed=True)
    parts = {"gate": several.scores.abs(), "information": several.scores.flip(0).abs()}
    rich = replace(several, parts=parts, diagnostics={"standard_errors": {"scores": several.scores.abs() / 10}})
    steps = tuple(
        written(words[:length], [float((5 * row) % length) for row in range(length)]) for length in (37, 38, 39)
    )
    return {
        "one": plots.page(rich, marked=[3, 4], note="underlined is the evidence"),
        "hostile": plots.page(written(HOSTILE, [float(row) for row in range(len(HOSTILE))])),
        "chat": plots.messages(of_chat()),
        "comparison": heta_lens.compare([several, replace(several, scores=several.scores.flip(0), method="lime")]),
        "span": plots.page(SpanAttribution(steps, tuple(words))),
    }


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "hostile", "chat", "comparison", "span"])
def test_everything_on_a_page_is_legible(name: str, mode: str, tmp_path: Path) -> None:
    assert run(views()[name].page, LEGIBLE, tmp_path, *([DARK] if mode == "dark" else [])) >= LEAST


def test_the_tests_of_legibility_can_fail(tmp_path: Path) -> None:
    faint = views()["one"].page.replace('class="notes"', 'class="notes" style="color: rgb(128 128 128)"')
    assert run(faint, LEGIBLE, tmp_path) < LEAST


def test_tokens_are_in_order_and_no_token_is_without_a_mark(tmp_path: Path) -> None:
    script = """return chips().map(chip => [chip.textContent, depth(chip), chip.getBoundingClientRect().width,
      chip.getBoundingClientRect().left]);"""
    shown = run(views()["hostile"].page, script, tmp_path)
    assert [text for text, *_ in shown] == chips(views()["hostile"]) and len(shown) == len(HOSTILE)
    assert all(width > 0 for _, _, width, _ in shown) and [depth > 0 for _, depth, *_ in shown] == [False, *[True] * 15]
    assert "evil" in shown[10][0] and "\\u202e" in shown[10][0]
    assert shown[7][3] > shown[8][3], "what is read from the right begins there"


def test_pointing_says_what_a_token_has_and_a_click_keeps_it(tmp_path: Path) -> None:
    script = """const all = chips();
      point(all[4]); const pointed = tip();
      all[4].click(); point(all[5]); const kept = tip();
      press("Escape"); const gone = tip();
      press("ArrowRight"); const first = tip(); press("End"); const last = tip(); press("Enter"); point(all[2]);
      return { pointed, kept, gone, first, last, held: tip(), marked: $$(".now").length };"""
    said = run(views()["one"].page, script, tmp_path)
    assert said["pointed"].startswith("“ w4” · position 4 · score 2 ± 0.2 (") and said["pointed"].endswith("evidence")
    assert "gate 2" in said["pointed"] and "information" in said["pointed"] and said["kept"] == said["pointed"]
    assert said["gone"].startswith("Point at") and said["first"].startswith("“ w0”")
    assert said["last"].startswith("“ w39”") and said["held"] == said["last"] and said["marked"] == 1


def test_the_switches_change_what_is_shown(tmp_path: Path) -> None:
    script = """const before = chips().map(depth);
      choose(0, "2"); const other = chips().map(depth);
      choose(0, "all"); const strips = $$(".strip").length;
      choose(0, "0"); choose(1, "sentences");
      const together = new Set(chips().map(depth)).size;
      choose(1, "tokens");
      const box = $(".bar input"); box.checked = true; box.onchange();
      return { before, other, strips, together, hidden: depth(chips()[0]), scale: $(".scale").textContent };"""
    shown = run(views()["one"].page, script, tmp_path)
    assert shown["before"] != shown["other"] and shown["other"][0] == pytest.approx(0.5)
    assert shown["strips"] == 3 and shown["together"] == 2
    assert shown["hidden"] == 0 and "hidden: 2.8 %" in shown["scale"]


def test_the_table_can_be_sorted_and_shows_all(tmp_path: Path) -> None:
    script = """const column = at => $$(`tbody td:nth-child(${at})`).map(cell => cell.textContent);
      const scores = column(5).map(parseFloat); $$("th button")[1].click(); const positions = column(2);
      $$("th button")[1].click(); const back = column(2);
      $(".more > button").click();
      const sorted = $("th:nth-child(2)").getAttribute("aria-sort");
      return { scores, positions, back, all: column(2).length, sorted };"""
    shown = run(views()["one"].page, script, tmp_path)
    sizes = [abs(score) for score in shown["scores"]]
    assert sizes == sorted(sizes, reverse=True) and min(shown["scores"]) < 0, "what is large against the target, too"
    assert shown["positions"] == [str(place) for place in range(20)] and shown["back"][0] == "39"
    assert shown["all"] == 40 and shown["sorted"] == "descending"


def test_a_comparison_has_a_strip_for_each_and_differences_of_ranks(tmp_path: Path) -> None:
    script = """point(chips()[0]);
      return { strips: $$(".strip").length, heads: $$("th").map(head => head.textContent), tip: tip(),
        marked: $$(".now").length, first: $$("tbody tr:first-child td").map(cell => cell.textContent) };"""
    shown = run(views()["comparison"].page, script, tmp_path)
    assert shown["strips"] == shown["marked"] == 2 and "rank (against heta)" in shown["heads"]
    assert "heta -2" in shown["tip"] and "lime 2" in shown["tip"]
    assert shown["first"][0] == "1" and shown["first"][-1].endswith(")")


def test_a_target_shows_what_made_it_and_a_source_what_it_feeds(tmp_path: Path) -> None:
    script = """const all = chips().map(depth);
      chips()[38].click(); const target = chips().map(depth), made = tip();
      chips()[38].click(); const again = chips().map(depth);
      const feeds = $$(".bar select").length - 1; choose(feeds, "feeds"); chips()[1].click();
      return { all, target, again, fed: chips().map(depth), scale: $(".scale").textContent, made,
        framed: $$(".t").length, canvas: $(".heat canvas").width };"""
    shown = run(views()["span"].page, script, tmp_path)
    assert shown["framed"] == 3 and shown["canvas"] > 100
    expected = torch.tensor([float((5 * row) % 38) for row in range(38)])
    torch.testing.assert_close(torch.tensor(shown["target"][:38]), expected / 37, rtol=0, atol=2e-3)
    assert shown["target"] != shown["all"] == shown["again"] and not any(shown["target"][38:])
    assert [place for place, depth in enumerate(shown["fed"]) if depth] == [37, 38, 39] and "feeds" in shown["scale"]


@pytest.mark.parametrize("targets", [0, 200])
def test_large_pages_answer(targets: int, tmp_path: Path) -> None:
    words = [f" w{number % 300}" for number in range(1000 if targets else 2000)]
    steps = tuple(written(words[:length]) for length in range(1000 - targets, 1000))
    view = plots.page(SpanAttribution(steps, tuple(words)) if targets else written(words))
    script = """point(chips()[700]);
      const box = $(".heat"), said = tip(), pixels = () => $(".heat canvas").toDataURL();
      if (!box) return { chips: chips().length, said };
      const before = pixels(), size = [box.clientHeight, box.scrollHeight];
      box.scrollTop = 900; box.scrollLeft = 5000; box.onscroll();
      await new Promise(requestAnimationFrame);
      return { chips: chips().length, said, scrolled: pixels() !== before, size };"""
    shown = run(view.page, script, tmp_path)
    assert shown["chips"] == len(words) and "position 700" in shown["said"] and len(view.page) < 1e6
    assert not targets or (shown["scrolled"] and shown["size"][0] < 600 < 3000 < shown["size"][1])


def test_without_scripts_the_tokens_and_their_colours_are_there(tmp_path: Path) -> None:
    page = views()["one"].page.replace("(() => {", "(() => { return;", 1)
    shown = run(page, "return [chips().map(depth), getComputedStyle($('.bar')).display];", tmp_path)
    assert len(shown[0]) == 40 and max(shown[0]) == 1 and shown[1] == "none"
