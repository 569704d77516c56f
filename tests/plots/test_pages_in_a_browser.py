"""Pages in a headless browser without network, light and dark: nothing fails, all is legible, and the switches work."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import heta_lens
from helpers.attributions import attribution, of_chat
from helpers.browser import DARK, chips, needs_browser, run, written
from heta_lens import plots
from heta_lens._util.html_view import View
from heta_lens.attribution import Messages
from heta_lens.diagnostics import Diagnostics
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
      const box = $(".bar input"); box.checked = true; box.onchange();
      return { before, other, strips, together, hidden: depth(chips()[0]), scale: $(".scale").textContent,
        said: (point(chips()[0]), tip()) };"""
    shown = run(views()["one"].page, script, tmp_path)
    assert shown["before"] != shown["other"] and shown["other"][0] == pytest.approx(0.5)
    assert shown["strips"] == 3 and shown["together"] == 2
    assert shown["said"].startswith("“ w0” · position 0 · score -2 ± 0.2 (2.8%, rank –)")
    assert shown["said"].endswith("hidden") and shown["hidden"] == 0 and "hidden: 2.8%" in shown["scale"]


def test_special_tokens_are_hidden_at_first_and_a_switch_shows_them(tmp_path: Path) -> None:
    script = """const state = () => [$(".bar input").checked, chips().map(depth), chips()[0].offsetParent !== null,
        $$("tbody tr").map(row => row.cells[2].textContent)];
      const before = state(), box = $(".bar input"); box.checked = false; box.onchange();
      const held = $(".held"), last = $$(".strip").pop();
      const below = held.compareDocumentPosition(last) & Node.DOCUMENT_POSITION_PRECEDING;
      return { before, after: state(), below: Boolean(below), held: held.textContent };"""
    shown = run(plots.page(attribution()).page, script, tmp_path)
    checked, depths, visible, listed = shown["before"]
    assert checked and not visible and depths == [0, 0.167, 1, 0.333, 0.667, 0.083]
    assert listed == ["“ cat”", "“at”", "“ s”", "“The”", "“⏎” (last)"]
    checked, depths, visible, listed = shown["after"]
    assert not checked and visible and depths[:3] == [1, 0.083, 0.5] and listed[0] == "“<bos>”"
    assert shown["below"] and shown["held"] == "'<bos>' (first token, special) holds 47% of the score"
    started = run(plots.page(attribution(), special=True).page, "return $('.bar input').checked", tmp_path)
    assert started is False


def test_a_template_saturates_no_message(tmp_path: Path) -> None:
    script = """choose(0, "messages");
      const bars = $$(".role i").map(bar => +getComputedStyle(bar).getPropertyValue("--w"));
      return { bars, depths: chips().map(depth), shares: $$(".role").map(head => head.textContent) };"""
    shown = run(plots.page(of_chat([600.0, 0.5, 3.0, 300.0, 2.0, 100.0])).page, script, tmp_path)
    assert shown["depths"] == [0, 1, 1, 0, pytest.approx(2 / 3.5, abs=1e-3), 0]
    assert shown["bars"] == [pytest.approx(3.5 / 5.5), pytest.approx(2 / 5.5)]
    assert shown["shares"] == ["user0.3%", "assistant0.2%"]


def test_the_matrix_of_a_span_has_no_special_sources_unless_they_are_shown(tmp_path: Path) -> None:
    special = torch.arange(5) == 0
    steps = tuple(written(["<s>", " a", " b", " c", " d"][:n], special=special[:n]) for n in (2, 3, 4))
    script = """const wide = () => parseFloat($(".heat > div").style.width), before = wide(), box = $(".bar input");
      box.checked = false; box.onchange();
      return [before, wide(), $$(".heat").length];"""
    before, after, count = run(
        plots.page(SpanAttribution(steps, ("<s>", " a", " b", " c", " d"))).page, script, tmp_path
    )
    assert after == before + 15 and count == 1


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
    assert (
        shown["strips"] == shown["marked"] == 2
        and "rank (change from heta)" in shown["heads"]
        and "lime, share" in shown["heads"]
    )
    assert "heta -2" in shown["tip"] and "lime 2" in shown["tip"]
    assert shown["first"][0] == "1" and shown["first"][-1].endswith(")")


def test_ranks_are_by_size_where_not_all_have_signs(tmp_path: Path) -> None:
    sizes, signed = (
        written(["a", " b", " c"], [1.0, 2.0, 3.0]),
        written(["a", " b", " c"], [1.0, -9.0, 3.0], signed=True),
    )
    script = """return $$("tbody tr").map(row => [...row.cells].map(cell => cell.textContent)).map(cells =>
      [cells[2], cells[0], cells[7]]);"""
    rows = run(heta_lens.compare([sizes, signed], names=["a", "b"]).page, script, tmp_path)
    assert rows == [["“ c” (last)", "1", "2 (↓1)"], ["“ b”", "2", "1 (↑1)"], ["“a”", "3", "3 (=)"]]


def test_a_target_shows_what_made_it_and_a_source_what_it_feeds(tmp_path: Path) -> None:
    script = """const all = chips().map(depth);
      $(".strip").focus(); chips()[38].click(); const target = chips().map(depth), made = tip();
      chips()[38].click(); const again = chips().map(depth);
      const feeds = $$(".bar select").length - 1; choose(feeds, "feeds"); chips()[1].click();
      return { all, target, again, fed: chips().map(depth), scale: $(".scale").textContent, made,
        focus: document.activeElement === $(".strip"), framed: $$(".t").length, canvas: $(".heat canvas").width };"""
    shown = run(views()["span"].page, script, tmp_path)
    assert shown["framed"] == 3 and shown["canvas"] > 100
    expected = torch.tensor([float((5 * row) % 38) for row in range(38)])
    torch.testing.assert_close(torch.tensor(shown["target"][:38]), expected / 37, rtol=0, atol=2e-3)
    assert shown["target"] != shown["all"] == shown["again"] and not any(shown["target"][38:])
    assert [place for place, depth in enumerate(shown["fed"]) if depth] == [37, 38, 39]
    assert "influence of “ w1”" in shown["scale"] and "scores for “ w38” 0 (" in shown["made"] and shown["focus"]


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
    assert shown["picked"][4:] == ["scores for “ w4”", "gate for “ w4”", "curvature for “ w4”"]
    assert shown["cells"][4:] == ["4 ± 0.4", "0.5", "8"], "of the last target alone, with its error"
    assert shown["views"][:3] == ["all targets", "gate", "curvature"]
    assert shown["part"][4:] == ["curvature for “ w4”", "scores for “ w4”", "gate for “ w4”"]
    assert shown["scale"].startswith("curvature for “ w4”") and "influence of “ w0”, curvature" in shown["fed"]


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
    assert shown["scale"].startswith("scores for “ w6”") and shown["last"].startswith("through the reasoning")


def test_a_chat_of_one_message_works_without_its_template(tmp_path: Path) -> None:
    messages = Messages(("user",), torch.tensor([[0, 1, 3]]), torch.tensor([-1, 0, 0]))
    made = written(["a", "b", "c"], messages=messages).without(template=True)
    script = "return [$('.role').textContent, $$('tbody tr').length, chips().map(chip => chip.textContent)];"
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
    assert shown == {"part": ["7", "6", "5"], "share": ["1", "2", "3"], "arrows": 1}


def test_two_views_on_one_page_do_not_disturb_each_other(tmp_path: Path) -> None:
    page = views()["one"].page + views()["comparison"].fragment + views()["one"].fragment
    script = """chips()[3].click();
      return [$$(".heta-view.live").length, $$(".heta-view").map(view => view.querySelectorAll(".now").length)];"""
    assert run(page, script, tmp_path) == [3, [1, 0, 0]]


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
        output.querySelector(".strip b").click();
        return [!!output.querySelector(".heta-view.live"), output.querySelectorAll("tbody tr").length > 5,
          output.querySelectorAll(".now").length > 0];
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
    page = views()["one"].page.replace("\n(() => {", "\n(() => { return;", 1)
    shown = run(page, "return [chips().map(depth), getComputedStyle($('.bar')).display];", tmp_path)
    assert len(shown[0]) == 40 and max(shown[0]) == 1 and shown[1] == "none"
