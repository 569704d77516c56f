"""Pages in a headless browser without network, light and dark: nothing fails, all is legible, and the switches work."""

import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import heta_lens
from helpers.attributions import attribution, of_chat
from helpers.browser import DARK, chips, needs_browser, run, written
from heta_lens import plots
from heta_lens._util.html_view import View
from heta_lens.attribution import Messages
from heta_lens.diagnostics import Diagnostics, rank_correlation
from heta_lens.plots.html_page import heat
from heta_lens.span_attribution import SpanAttribution

pytestmark = [needs_browser, pytest.mark.slow]

HOSTILE = ["<s>", "\n", "\n", "Hi", " </script><script>alert(1)</script>", "\t", " ", " مرحبا", " می‌خواهم", " 👨‍💻",
           "\u202eevil", "<b>&amp;", "\u200d", "\xa0", "<!--", " end"]  # fmt: skip
LEAST = 4.5
LEGIBLE = """
$$("details").forEach(folded => { folded.open = true; });
point(chips()[chips().length - 2]);
const shown = $$(".heta-view *").filter(element => element.textContent.trim() && !element.children.length
  && !element.matches("script, style, option") && element.offsetParent);
return Math.min(...shown.map(legibility));
"""


AXE = """
const { violations } = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa"], resultTypes: ["violations"] });
const serious = violations.filter(each => ["serious", "critical"].includes(each.impact));
return serious.map(each => [each.id, each.nodes[0].html]);
"""


@cache
def views() -> dict[str, View]:
    words = [f" w{number}" + (".\n" if number == 19 else "") for number in range(40)]
    several = written(words, [float(number % 7 - 2) for number in range(40)], signed=True)
    parts = {"gate": several.scores.abs(), "information": several.scores.flip(0).abs()}
    rich = replace(
        several, parts=parts, diagnostics=Diagnostics.of({"standard_errors": {"scores": several.scores.abs() / 10}})
    )
    steps = tuple(
        written(words[:length], [float((5 * row) % length) for row in range(length)]) for length in (37, 38, 39)
    )
    return {
        "one": plots.page(rich, marked=[3, 4], note="underlined is the evidence"),
        "hostile": plots.page(written(HOSTILE, [float(row) for row in range(len(HOSTILE))])),
        "chat": plots.page(of_chat()),
        "comparison": heta_lens.compare([several, replace(several, scores=several.scores.flip(0), method="lime")]),
        "span": plots.page(SpanAttribution(steps, tuple(words))),
    }


@pytest.mark.sample(quick=0, test=3)
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "hostile", "chat", "comparison", "span"])
def test_everything_on_a_page_is_legible(name: str, mode: str, tmp_path: Path) -> None:
    assert run(views()[name].page, LEGIBLE, tmp_path, *([DARK] if mode == "dark" else [])) >= LEAST


@pytest.mark.sample(quick=0, test=3)
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "chat", "comparison", "span"])
def test_a_saved_page_is_accessible(name: str, mode: str, tmp_path: Path) -> None:
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = views()[name].page + f"<script>{axe}</script>"
    assert run(page, AXE, tmp_path, *([DARK] if mode == "dark" else [])) == []


PAINTED = """
const even = colour => {
  const [r, g, b] = colour.map(part => linear(part / 255));
  const [l, m, s] = [[.4122214708, .5363325363, .0514459929], [.2119034982, .6806995451, .1073969566],
    [.0883024619, .2817188376, .6299787005]].map(([x, y, z]) => Math.cbrt(x * r + y * g + z * b));
  return [.2104542553 * l + .793617785 * m - .0040720468 * s, 1.9779984951 * l - 2.428592205 * m + .4505937099 * s,
    .0259040371 * l + .7827717662 * m - .808675766 * s];  // OKLab
};
const painted = (depth, below) => {
  const chip = chips()[1];
  chip.style.setProperty("--a", depth);
  chip.classList.toggle("n", below);
  return background(chip);
};
const far = (one, other) => Math.hypot(...even(one).map((part, at) => part - even(other)[at]));
return [false, true].map(below => {
  const steps = [.1, .3, .5, .7, .9, 1.1].map(depth => painted(depth - .1, below));
  const contrasts = steps.map((_, at) => { painted(at / 5, below); return legibility(chips()[1]); });
  return { faint: far(painted(.08, below), background($(".text"))), contrast: Math.min(...contrasts),
    steps: steps.slice(2).map((step, at) => far(step, steps[at + 1])) };
});
"""


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_8_percent_are_seen_equal_steps_look_equal_and_text_is_read_on_all(mode: str, tmp_path: Path) -> None:
    for side in run(views()["one"].page, PAINTED, tmp_path, *([DARK] if mode == "dark" else [])):
        assert side["faint"] > 0.04, "twice what is just noticed"
        assert max(side["steps"]) < 1.25 * min(side["steps"]) and side["contrast"] >= LEAST


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_heat_map_is_legible_and_cuts_no_label(mode: str, tmp_path: Path) -> None:
    names = [f"a long label {number}" for number in range(50)]
    view = heat("title", ["one row", "another"], names, torch.linspace(-1, 1, 100).reshape(2, 50), "note")
    script = """const labels = $$("th span");
      const scrolls = box => box.scrollHeight > box.clientHeight || box.scrollWidth > box.clientWidth;
      const wide = $$(".heta-heat div").filter(scrolls).length;
      return { count: labels.length, cut: labels.filter(scrolls).length, wide,
        legible: Math.min(...$$("h2, p, th span, tbody th").map(legibility)), host: hosts()[0].shadowRoot !== null };"""
    shown = run(view.page, script, tmp_path, "--window-size=1280,900", *([DARK] if mode == "dark" else []))
    assert (shown["count"], shown["cut"], shown["wide"], shown["host"]) == (50, 0, 0, True) and shown[
        "legible"
    ] >= LEAST


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["one", "hostile", "chat", "comparison", "span"])
def test_nothing_is_wider_than_the_page(name: str, width: int, tmp_path: Path) -> None:
    script = f"""document.body.style.width = "{width - 16}px"; document.body.style.margin = "8px";
      $$("details").forEach(folded => {{ folded.open = true; }});
      point(chips()[1]);
      const scrolled = element => element.closest(".sheet, .heat, .tip, [hidden]") || !element.offsetParent;
      return $$(".heta-view *").filter(element => element.checkVisibility() && !scrolled(element)
        && element.getBoundingClientRect().right > {width - 8} + .5).map(element => element.outerHTML.slice(0, 80));"""
    assert run(views()[name].page, script, tmp_path, "--window-size=1400,900") == []


def test_the_card_shows_the_highest_scores_and_then_a_token_with_its_parts(tmp_path: Path) -> None:
    script = """const first = card(), rows = () => $$(".card .rows > div");
      rows()[0].onclick(); const pinned = card();
      $(".card button").click(); const again = card();
      point(chips()[4]);
      const bars = rows().map(row => [row.textContent, parseFloat(row.querySelector("i").style.width)]);
      return { first, pinned, again, bars,
        error: parseFloat($(".card u").style.width), tags: $(".tags").textContent };"""
    shown = run(views()["one"].page, script, tmp_path)
    assert shown["first"].startswith("Highest of 40 tokens: score") and shown["first"] == shown["again"]
    assert shown["pinned"].startswith("unpin“w6”position 6 · rank 1 of 40 · 5.6%")
    assert shown["pinned"].endswith("How does it get there? causal.components(cache, [6], tokens=tokens)")
    (score, wide), (gate, half), (information, _) = shown["bars"]
    assert (score, gate, information[:11]) == ("score2.00 ± 0.20", "gate2.00", "information")
    assert (wide, half, shown["error"]) == (
        pytest.approx(100 * 2 / 4.4 / 2, abs=0.01),
        50,
        pytest.approx(4.5, abs=0.1),
    )
    assert shown["tags"] == "evidence"


def test_the_prediction_stands_at_the_end_with_the_next_candidates(tmp_path: Path) -> None:
    facts = {"target_log_prob": -0.5, "target_rank": 2, "candidates": ((" y", -0.25), (" x", -0.5), (" z", -9.0))}
    view = plots.page(written(["a", " b"], diagnostics=Diagnostics.of(facts)))
    script = """return [$(".end strong").textContent, $$(".end > span").map(next => next.textContent),
      $(".last").nextElementSibling === $(".end")];"""
    assert run(view.page, script, tmp_path) == ["x60.7% · rank 2", ["y 77.9%"], True]


def test_text_and_matrix_are_linked_and_keys_move_in_the_matrix(tmp_path: Path) -> None:
    script = """const pixels = () => $(".heat canvas").toDataURL(), frame = () => new Promise(requestAnimationFrame);
      const before = pixels(); point(chips()[3]); await frame(); const linked = pixels() !== before;
      $(".heat").focus(); press("ArrowDown"); press("ArrowDown"); press("ArrowRight"); press("ArrowRight");
      const said = tip(), source = $(".now").textContent, target = $(".to-here").textContent;
      press("Enter"); const picked = $(".pick").textContent;
      press("Escape");
      return { linked, said, source, target, picked, none: $$(".pick").length, after: tip() };"""
    shown = run(views()["span"].page, script, tmp_path)
    assert shown["linked"] and shown["said"].startswith("target “ w38”, source “ w")
    assert (shown["target"], shown["picked"]) == ("w38", "w38") and f" {shown['source']}”" in shown["said"]
    assert shown["none"] == 0 and shown["after"].startswith("Targets are outlined")


def test_the_page_around_a_view_does_not_change_it(tmp_path: Path) -> None:
    alien = """<style>* { letter-spacing: 9px !important; text-transform: uppercase; line-height: 3 !important }
      b, strong { font-weight: 900 !important; display: none } table { width: 100% !important } .card { float: left }
      button { all: unset }</style>"""
    script = """const names = ["letterSpacing", "textTransform", "lineHeight", "fontWeight", "display", "width"];
      return [".strip", ".strip b", ".end strong", ".card", "table", "button", "h2"].map(name => {
        const style = getComputedStyle($(name));
        return names.map(own => style[own]);
      });"""
    page = views()["one"].page
    assert run(page, script, tmp_path) == run(page.replace("<title>", f"{alien}<title>", 1), script, tmp_path)


def test_a_view_follows_a_dark_notebook_in_a_light_browser(tmp_path: Path) -> None:
    page, host, script = views()["one"].page, '<div class="heta-lens">', "return $('.heta-view').matches('.dark');"
    notebook = page.replace(host, f'<div style="background: #111; color: #ddd">{host}', 1)
    assert run(notebook, script, tmp_path) is True and run(page, script, tmp_path) is False
    turned = """document.body.style.cssText = "background: #111; color: #ddd";
      await new Promise(done => setTimeout(done, 100));"""
    assert run(page, turned + script, tmp_path) is True, "the theme may change later"


def test_a_view_that_is_taken_out_and_put_back_follows_the_theme(tmp_path: Path) -> None:
    script = """const host = document.querySelector(".heta-lens"), home = host.parentNode;
      const view = host.shadowRoot.firstElementChild;
      const dark = async () => { await new Promise(done => setTimeout(done, 600)); return view.matches(".dark"); };
      host.remove();
      document.body.style.cssText = "background: #111; color: #ddd";
      const out = await dark();
      home.append(host);
      document.body.dataset.theme = "dark";
      return [out, await dark()];"""
    assert run(views()["one"].page, script, tmp_path) == [False, True]


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
      $(".strip").focus();
      point(all[4]); const pointed = tip();
      all[4].click(); point(all[5]); const kept = tip();
      press("Escape"); const gone = tip();
      press("ArrowRight"); const first = tip(); press("End"); const last = tip(); press("Enter"); point(all[2]);
      const browsers = press("ArrowLeft", { altKey: true });
      return { browsers, pointed, kept, gone, first, last, held: tip(), marked: $$(".now").length };"""
    said = run(views()["one"].page, script, tmp_path)
    assert said["pointed"].startswith("“ w4” · position 4 · score 2 ± 0.2 (") and said["pointed"].endswith("evidence")
    assert "gate 2" in said["pointed"] and "information" in said["pointed"] and said["kept"] == said["pointed"]
    assert said["gone"].startswith("Point at") and said["first"].startswith("“ w0”")
    assert said["last"].startswith("“ w39”") and said["held"] == said["last"] and said["marked"] == 1
    assert said["browsers"], "keys that the browser has a use for are left to it"


def test_the_switches_change_what_is_shown(tmp_path: Path) -> None:
    script = """const before = chips().map(depth);
      choose(0, "2"); const other = chips().map(depth);
      choose(0, "all"); const strips = $$(".strip").length;
      choose(0, "0"); choose(1, "sentences");
      const together = new Set(chips().map(depth)).size;
      choose(1, "tokens");
      tick(0, true);
      return { before, other, strips, together, hidden: depth(chips()[0]), scale: $(".scale").textContent,
        said: (point(chips()[0]), tip()) };"""
    shown = run(views()["one"].page, script, tmp_path)
    assert shown["before"] != shown["other"] and shown["other"][0] == pytest.approx(0.5)
    assert shown["strips"] == 3 and shown["together"] == 2
    assert shown["said"].startswith("“ w0” · position 0 · score −2 ± 0.2 (2.8%, rank –)")
    assert shown["said"].endswith("hidden") and shown["hidden"] == 0 and "hidden: 2.8%" in shown["scale"]


@pytest.mark.parametrize(
    ("scores", "ends"),
    [([0.0, 9.0, 1.0], ["0", "≥ 2"]), ([1.0, -9.0, 0.0], ["against ≤ −2", "2 for"]), ([2.0, 6.0, 2.0], ["0", "6"])],
)
def test_a_scale_says_where_scores_go_beyond_it(scores: list[float], ends: list[str], tmp_path: Path) -> None:
    made = written(["a", "b", "c"], scores, signed=min(scores) < 0)
    script = (
        """return [[$(".key").firstChild, $(".key").lastChild].map(end => end.textContent), $(".scale").textContent];"""
    )
    shown, said = run(plots.page(made, special=True).page, script, tmp_path)
    assert shown == ends and ("twice the second largest" in said) == ("≥" in "".join(ends) or "≤" in "".join(ends))


@pytest.mark.parametrize("first", [1.0, 3.0])
def test_a_scale_says_that_it_leaves_out_the_first_word(first: float, tmp_path: Path) -> None:
    script = """return [$(".key").lastChild.textContent, $(".scale").textContent];"""
    end, said = run(plots.page(written(["Tom", " sat", " down"], [first, 4.0, 2.0])).page, script, tmp_path)
    assert end == "4" and ("the scale leaves out “Tom”, which begins the text (33.3%)" in said) == (first == 3)


def test_signs_that_predict_nothing_have_no_sides(tmp_path: Path) -> None:
    chosen = Diagnostics.of({"chosen": {"rule": "cp_lrp"}})
    made = written(["a", "b", "c"], [1.0, -3.0, 2.0], signed=True, method="attn_lrp", diagnostics=chosen)
    shown = run(plots.page(made, special=True).page, """return $(".key").textContent;""", tmp_path)
    assert shown == "−33"


def test_special_tokens_are_quiet_chips_at_first_and_a_switch_or_a_click_shows_them(tmp_path: Path) -> None:
    script = """const state = () => [$(".bar input").checked, chips().map(depth), chips()[0].offsetParent !== null,
        $$("tbody tr").map(row => row.cells[2].textContent), $(".quiet").hidden];
      const before = state(), quiet = $(".quiet").textContent;
      $(".quiet").click(); const clicked = state();
      tick(0, true); const again = state(); tick(0, false);
      return { before, quiet, clicked, again, after: state(), read: $(".last").textContent };"""
    shown = run(plots.page(attribution()).page, script, tmp_path)
    checked, depths, visible, listed, loud = shown["before"]
    assert checked and not visible and not loud and depths == [0, 0.167, 1, 0.333, 0.667, 0.083]
    assert listed == ["“ cat”", "“at”", "“ s”", "“The”", "“⏎” (last)"]
    checked, depths, visible, listed, loud = shown["after"]
    assert not checked and visible and loud and depths[:3] == [1, 0.083, 0.5] and listed[0] == "“<bos>”"
    assert shown["before"] == shown["again"] and shown["clicked"] == shown["after"]
    assert shown["quiet"] == "<bos>47.1%" and shown["read"] == "⏎"
    started = run(plots.page(attribution(), special=True).page, "return $('.bar input').checked", tmp_path)
    assert started is False


def test_a_template_saturates_no_message(tmp_path: Path) -> None:
    script = """choose(0, "messages");
      const bars = $$(".role i").map(bar => +getComputedStyle(bar).getPropertyValue("--w"));
      const shares = $$(".role").map(head => [...head.children].map(part => part.textContent).join("|"));
      return { bars, depths: chips().map(depth), shares };"""
    shown = run(plots.page(of_chat([600.0, 0.5, 3.0, 300.0, 2.0, 100.0])).page, script, tmp_path)
    assert shown["depths"] == [0, 1, 1, 0, pytest.approx(2 / 3.5, abs=1e-3), 0]
    assert shown["bars"] == [pytest.approx(3.5 / 5.5), pytest.approx(2 / 5.5)]
    assert shown["shares"] == ["user||0.3%|<s>59.7%", "assistant||0.2%|</s>29.8%"]


def test_the_matrix_of_a_span_has_no_special_sources_unless_they_are_shown(tmp_path: Path) -> None:
    special = torch.arange(5) == 0
    steps = tuple(written(["<s>", " a", " b", " c", " d"][:n], special=special[:n]) for n in (2, 3, 4))
    script = """const wide = () => parseFloat($(".heat > div").style.width), before = wide();
      tick(0, false);
      return [before, wide(), $$(".heat").length];"""
    before, after, count = run(
        plots.page(SpanAttribution(steps, ("<s>", " a", " b", " c", " d"))).page, script, tmp_path
    )
    assert after > before and count == 1


def test_the_table_is_folded_short_and_sorted_as_it_says(tmp_path: Path) -> None:
    script = """const column = at => $$(`tbody td:nth-child(${at})`).map(cell => cell.textContent);
      const sorts = $$("th").map(head => head.getAttribute("aria-sort"));
      const folded = !$(".more").open, arrow = sorts.indexOf("descending");
      const few = column(5).length, rest = $(".sheet p").textContent;
      $(".sheet p button").click();
      const scores = column(5).map(text => parseFloat(text.replace("−", "-"))); $(".sheet p button").click();
      $$("th button")[1].click(); const positions = column(2);
      $$("th button")[1].click(); const back = column(2);
      $(".sheet p button").click();
      const sorted = $("th:nth-child(2)").getAttribute("aria-sort");
      const widths = $$("td .track i").map(bar => parseFloat(bar.style.width));
      return { widths, folded, arrow, few, scores, rest, positions, back, all: column(2).length, sorted };"""
    shown = run(views()["one"].page, script, tmp_path)
    sizes = [abs(score) for score in shown["scores"]]
    assert sizes == sorted(sizes, reverse=True) and min(shown["scores"]) < 0, "what is large against the target, too"
    assert (
        shown["folded"]
        and shown["arrow"] == 3
        and shown["few"] == 10
        and shown["rest"].startswith("30 more tokens hold ")
    )
    assert shown["positions"] == [str(place) for place in range(10)] and shown["back"][0] == "39"
    assert shown["all"] == 40 and shown["sorted"] == "descending"


def test_rows_that_hold_nearly_nothing_wait_until_all_are_asked_for(tmp_path: Path) -> None:
    made = written([f" w{at}" for at in range(9)], [5.0, 3.0, 2.0, 1.0, *[1e-5] * 5])
    script = """const scores = () => $$("tbody td:nth-child(5)").map(cell => cell.textContent), some = scores();
      const told = $(".sheet p").firstChild.data; $(".sheet p button").click();
      return [some, told, scores()];"""
    some, told, whole = run(plots.page(made).page, script, tmp_path)
    assert some == ["5.00", "3.00", "2.00", "1.00"] and told == "5 more tokens hold <0.1% of score together."
    assert whole[4:] == ["<0.01"] * 5


def test_a_comparison_has_a_strip_for_each_and_differences_of_ranks(tmp_path: Path) -> None:
    script = """const agreement = card();
      point(chips()[0]);
      const heads = $$("th").map(head => head.textContent);
      return { agreement, card: card(), strips: $$(".strip").length, heads, tip: tip(),
        marked: $$(".now").length, first: $$("tbody tr:first-child td").map(cell => cell.textContent) };"""
    shown = run(views()["comparison"].page, script, tmp_path)
    assert (
        shown["strips"] == shown["marked"] == 2
        and "rank (change from heta)" in shown["heads"]
        and "lime, share" in shown["heads"]
    )
    assert "heta −2" in shown["tip"] and "lime 2" in shown["tip"] and "rank" in shown["card"]
    scores = torch.tensor([float(at % 7 - 2) for at in range(40)])
    expected = rank_correlation(scores, scores.flip(0))
    assert shown["agreement"].startswith(f"Agreement{expected:.2f}is the mean rank correlation".replace("-", "−"))
    assert shown["first"][0] == "1" and shown["first"][-1].endswith(")")


def test_a_target_shows_what_made_it_and_a_source_what_it_feeds(tmp_path: Path) -> None:
    script = """const all = chips().map(depth);
      $(".strip").focus(); chips()[38].click(); const target = chips().map(depth), made = tip();
      chips()[38].click(); const again = chips().map(depth);
      const feeds = $$(".bar select").length - 1; choose(feeds, "feeds"); chips()[1].click();
      return { all, target, again, fed: chips().map(depth), scale: $(".scale").textContent, made,
        focus: focused() === $(".strip"), framed: $$(".t").length, canvas: $(".heat canvas").width };"""
    shown = run(views()["span"].page, script, tmp_path)
    assert shown["framed"] == 3 and shown["canvas"] > 100
    expected = torch.tensor([float((5 * row) % 38) for row in range(38)])
    torch.testing.assert_close(torch.tensor(shown["target"][:38]), expected / 37, rtol=0, atol=2e-3)
    assert shown["target"] != shown["all"] == shown["again"] and not any(shown["target"][38:])
    assert [place for place, depth in enumerate(shown["fed"]) if depth] == [37, 38, 39]
    assert "influence of “w1”" in shown["scale"] and "scores for “w38” 0 (" in shown["made"] and shown["focus"]


def test_of_a_target_its_parts_and_errors_are_shown(tmp_path: Path) -> None:
    steps = []
    for length in (3, 4):
        scores = torch.arange(1.0, length + 1)
        made = written([f" w{at}" for at in range(length)], scores.tolist())
        errors, parts = (
            Diagnostics(standard_errors={"scores": scores / 10}),
            {"gate": scores / 8, "curvature": 2 * scores},
        )
        steps.append(replace(made, parts=parts, diagnostics=errors))
    view = plots.page(SpanAttribution(tuple(steps), tuple(f" w{at}" for at in range(5))))
    script = """const heads = () => $$("th").map(head => head.textContent), before = heads();
      const first = () => $$("tbody tr:first-child td").map(cell => cell.textContent.trim());
      chips()[4].click(); const picked = heads(), cells = first();
      choose(0, "2"); const views = $$(".bar select option").map(option => option.textContent);
      chips()[4].click(); const part = heads(), scale = $(".scale").textContent;
      choose($$(".bar select").length - 1, "feeds"); chips()[0].click();
      return { before, picked, cells, views, part, scale, fed: $(".scale").textContent };"""
    shown = run(view.page, script, tmp_path)
    assert shown["before"][4:] == ["all targets", "gate", "curvature"]
    assert shown["picked"][4:] == ["scores for “w4”", "gate for “w4”", "curvature for “w4”"]
    assert shown["cells"][4:] == ["4.00 ± 0.40", "0.500", "8.00"], "of the last target alone, with its error"
    assert shown["views"][:3] == ["all targets", "gate", "curvature"]
    assert shown["part"][4:] == ["curvature for “w4”", "scores for “w4”", "gate for “w4”"]
    assert shown["scale"].startswith("curvature for “w4”") and "influence of “w0”, curvature" in shown["fed"]


def test_targets_that_write_one_character_together_are_one(tmp_path: Path) -> None:
    tokens, offsets = ["a", "b", "c", "d"], torch.tensor([[0, 1], [1, 2], [1, 2], [1, 2]])
    steps = tuple(
        written(tokens[:length], [float(length)] * length, text="a😀", offsets=offsets[:length]) for length in (2, 3)
    )
    last = replace(steps[1], offsets=offsets[:3])
    view = plots.page(SpanAttribution((steps[0], last), ("a", "b", "c", "")))
    script = """chips()[1].click(); const picked = tip();
      choose($$(".bar select").length - 1, "feeds"); chips()[0].click();
      return { chips: chips().length, framed: $$(".t").map(chip => chip.textContent), picked, fed: tip() };"""
    shown = run(view.page, script, tmp_path)
    assert "😀" in shown["framed"] and "scores for “😀”" in shown["picked"] and "influence of “a”" in shown["fed"]


def test_a_pick_among_several_strips_shows_one(tmp_path: Path) -> None:
    steps = [written([f" w{at}" for at in range(length)]) for length in (4, 5, 6)]
    span = SpanAttribution((steps[2],), tuple(f" w{at}" for at in range(7)), (steps[0], steps[1]))
    script = """choose(0, "all"); const before = $$(".strip").length;
      chips()[6].click(); const scale = $(".scales").textContent, chosen = $(".bar select").value;
      $(".strip").focus(); press("Escape");
      return { before, after: $$(".strip").length, scale, chosen, last: $(".scales").textContent };"""
    shown = run(plots.page(span).page, script, tmp_path)
    assert (shown["before"], shown["after"], shown["chosen"]) == (2, 1, "0")
    assert shown["scale"].startswith("scores for “w6”") and shown["last"].startswith("through the reasoning")


def test_a_chat_of_one_message_works_without_its_template(tmp_path: Path) -> None:
    messages = Messages(("user",), torch.tensor([[0, 1, 3]]), torch.tensor([-1, 0, 0]))
    made = written(["a", "b", "c"], messages=messages).without(template=True)
    script = "return [$('.role').textContent.trim(), $$('tbody tr').length, chips().map(chip => chip.textContent)];"
    for by, rows in (("tokens", 2), ("messages", 1)):
        shown = run(plots.page(made).page, f"choose(0, '{by}'); {script}", tmp_path)
        assert shown == ["user100.0%", rows, ["b", "c"]]


def test_columns_of_one_name_are_sorted_each_by_itself(tmp_path: Path) -> None:
    made = written(["a", " b", " c"], [3.0, 2.0, 1.0])
    view = plots.page(replace(made, parts={"share": torch.tensor([5.0, 7.0, 6.0])}))
    script = """const column = at => $$(`tbody td:nth-child(${at})`).map(cell => cell.textContent.trim());
      $$("th button")[5].click(); const part = column(6); $$("th button")[3].click();
      return { part, share: column(1), arrows: $$("th").filter(head => /[▾▴]/.test(head.textContent)).length };"""
    shown = run(view.page, script, tmp_path)
    assert shown == {"part": ["7.00", "6.00", "5.00"], "share": ["1", "2", "3"], "arrows": 1}


INSERTED = """const outputs = fragments.map(fragment => {
  const output = document.createElement("div");
  document.body.append(output);
  output.innerHTML = fragment;
  output.querySelectorAll("script:not([type])").forEach(dead => {
    const script = document.createElement("script");
    script.textContent = dead.textContent;
    PLACE;
  });
  return output;
});"""
IN_PLACE, IN_HEAD = "dead.replaceWith(script)", "document.head.appendChild(script).remove()"  # where a script is run
FRAMED = """const outputs = await Promise.all(fragments.map(fragment => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.srcdoc = fragment;
  frame.onload = () => done(frame.contentDocument.body);
  document.body.append(frame);
})));"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way",
    [INSERTED.replace("PLACE", IN_PLACE), INSERTED.replace("PLACE", IN_HEAD), FRAMED],
    ids=["lab, vs code", "classic", "colab"],
)
def test_a_view_works_however_a_notebook_shows_it(way: str, tmp_path: Path) -> None:
    fragments = json.dumps([views()[name].fragment for name in ("one", "span", "comparison")]).replace("<", "\\u003c")
    script = f"""const fragments = {fragments}; {way}
      return outputs.map(output => {{
        const root = output.querySelector(".heta-lens").shadowRoot;
        root.querySelector(".strip b").click();
        return [!!root.querySelector(".heta-view.live"), root.querySelectorAll("tbody tr").length > 5,
          root.querySelectorAll(".now").length > 0];
      }});"""
    assert run("<title>a notebook</title>", script, tmp_path) == [[True, True, True]] * 3


@pytest.mark.thorough
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
    assert shown["chips"] == len(words) and "position 700" in shown["said"] and len(view.page) < 1.2e6
    assert not targets or (shown["scrolled"] and shown["size"][0] < 600 < 3000 < shown["size"][1])


def test_without_scripts_the_tokens_and_their_colours_are_there(tmp_path: Path) -> None:
    page = re.sub("<script>{.*?</script>", "", views()["one"].page, flags=re.DOTALL)
    script = """return [chips().map(depth), getComputedStyle($(".bar")).display, Math.min(...chips().map(legibility)),
      hosts()[0].shadowRoot];"""
    for mode in ([], [DARK]):
        depths, bar, contrast, root = run(page, script, tmp_path, *mode)
        assert len(depths) == 40 and max(depths) == 1 and bar == "none" and contrast >= LEAST and root is None
