"""The app as a person uses it, in a real browser."""

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import heta_lens
from helpers.browser import CHROMIUM, needs_browser
from heta_lens.model.lock import holding
from heta_lens.web import app
from heta_lens.web.server import App

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [needs_browser, pytest.mark.slow]
PATIENCE = 300_000  # milliseconds until something counts as hung


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        own = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield own
        own.close()


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def opened(browser: Any, running: App, errors: list[str]) -> Iterator[Callable[..., Any]]:
    contexts: list[Any] = []

    def open_page(address: str = "", **how: Any) -> Any:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **how}))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(address or running.address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


def generate(page: Any, text: str = "") -> list[str]:
    if text:
        page.get_by_label("prompt", exact=True).fill(text)
    page.locator("#tokens").fill("2")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="whole answer").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    return page.locator(".words button:not(.all)").all_inner_texts()


def explain(page: Any, place: int = 0) -> None:
    """Click a word of the answer, and wait for all methods."""
    page.locator(".words button").nth(place).click()
    page.locator("#view .strip").first.wait_for()
    page.locator("#stop").wait_for(state="hidden")


def pin(page: Any, text: str) -> None:
    page.locator("#view .strip b", has_text=re.compile(rf"^{re.escape(text)}$")).first.click()


def outcome(page: Any) -> str:
    page.get_by_role("button", name="See").click()
    page.locator("#outcome table, #outcome .error").first.wait_for()
    page.locator("#stop").wait_for(state="hidden")
    return page.locator("#outcome").inner_text()


def test_generate_explain_compare_change_and_save(
    opened: Callable[..., Any], running: App, story: str, tmp_path: Path
) -> None:
    page = opened()
    page.get_by_role("button", name="Example").click()
    assert page.get_by_label("prompt", exact=True).input_value().startswith("Mia put the key")
    (tmp_path / "story.txt").write_text(story, encoding="utf-8")
    page.locator("#file").set_input_files(tmp_path / "story.txt")
    assert generate(page) == [" jar", "."]
    explain(page)
    assert "Why “jar”?" in page.locator("#view h2").inner_text()
    assert page.locator(".tabs button[aria-pressed=true]").inner_text().startswith("careful")
    assert page.locator("#view .kicker").inner_text().startswith("careful")
    page.get_by_role("button", name=re.compile("^heta")).click()
    assert page.locator("#view .kicker").inner_text().startswith("heta")
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Agreement", exact=True).wait_for()
    page.get_by_label("another method").select_option("gradient_norm")
    page.locator("#view .kicker", has_text="gradient_norm").wait_for()
    page.locator("#stop").wait_for(state="hidden")

    pin(page, "jar")
    assert "If “jar” at" in page.locator("#pinned").inner_text()
    model = running.answers.model
    ids = model.to_tokens(story)
    cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]
    scores = heta_lens.attribute(cache, tokens=ids, method="leave_one_out", effect="kl")
    place = scores.tokens.index(" jar")
    said = outcome(page)
    score = f"{float(f'{float(scores.scores[place]):.3g}'):g}"
    assert f"moves by {score} nats (KL)." in said
    pin(page, "Alba")
    for how, text in ("delete", "deleted"), ("replace", "replaced by “Hana”"):
        page.get_by_label("What happens to the token").select_option(how)
        if how == "replace":
            page.get_by_label("by the text").fill("Hana")
        assert f"With “Alba” {text}, “jar” goes from" in outcome(page)
    page.get_by_label("What happens to the token").select_option("patch")
    page.get_by_label(re.compile("the other prompt, with as many tokens")).fill(story.replace("Alba", "Hana"))
    assert "With “Alba” patched at layer 0 from “In the closet" in outcome(page)

    page.get_by_label("What happens to the token").select_option("resample")
    assert "With “Alba” drawn again by the model, “jar” goes from" in outcome(page)
    page.get_by_role("button", name="How does it get there?").click()
    page.locator("#circuit svg").wait_for()
    assert "How ' Alba' (" in page.locator("#circuit h2").inner_text()
    with page.expect_download() as download:
        page.locator("#circuit").get_by_role("link", name="SVG").click()
    download.value.save_as(tmp_path / "circuit.svg")
    assert (tmp_path / "circuit.svg").read_text(encoding="utf-8").startswith("<?xml")
    pin(page, "jar")
    assert not page.locator("#circuit").inner_text()

    with page.expect_download() as download:
        page.locator("#files").get_by_role("link", name="JSON").click()
    download.value.save_as(tmp_path / "saved.json")
    assert '"method": "gradient_norm"' in (tmp_path / "saved.json").read_text(encoding="utf-8")


def test_a_whole_answer_and_other_targets(opened: Callable[..., Any], story: str) -> None:
    page = opened()
    generate(page, story)
    page.get_by_role("button", name="whole answer").click()
    page.locator("#view .t").first.wait_for()
    assert page.get_by_text("Click a single token of the answer").is_visible()
    assert page.locator("#what-if form").is_hidden() and page.get_by_label("Another token").is_hidden()
    page.locator("#stop").wait_for(state="hidden")
    explain(page)
    page.get_by_text("Explain another target").click()
    page.get_by_label("rather than").fill("pan")  # and not the token that is explained
    page.get_by_role("button", name="Explain", exact=True).first.click()
    page.locator("#view h2", has_text="Why “jar” rather than “pan”?").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.get_by_role("button", name="Explain the next token").click()
    page.locator("#view .kicker").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.get_by_label("Another token").fill("pan")  # as a word: after a space, as the answer is
    page.get_by_label("rather than").fill("jar")
    page.get_by_role("button", name="Explain", exact=True).first.click()
    page.locator("#view h2", has_text="Why “pan” rather than “jar”?").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.get_by_label("Activation").fill("blocks.1.mlp.hook_post")
    page.get_by_label("index").fill("5")
    page.get_by_role("button", name="Explain", exact=True).nth(1).click()
    page.locator("#view h2", has_text="blocks.1.mlp.hook_post[5]").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.get_by_label("Method", exact=True).fill("leave_one_out mask=mean effect=log_prob")
    page.get_by_role("button", name="Explain", exact=True).last.click()
    page.locator("#view .kicker", has_text="mask='mean'").wait_for()


def test_a_question_that_cannot_be_answered_leaves_what_was_there(opened: Callable[..., Any], story: str) -> None:
    page = opened()
    generate(page, story)
    explain(page)
    page.get_by_text("Explain another target").click()
    page.get_by_label("Activation").fill("blocks.99.hook_resid_post")
    page.get_by_label("index").fill("5")
    page.get_by_role("button", name="Explain", exact=True).nth(1).click()
    page.locator("#says.error", has_text="no such hook point").wait_for()
    assert page.locator("#view h2").inner_text() == "Why “jar”?"
    assert page.locator(".tabs button", has_text="not run").count() == 0
    pin(page, "Alba")
    page.get_by_label("What happens to the token").select_option("replace")
    assert outcome(page) == "there is no text to insert: write a text, or delete the tokens"
    page.get_by_label("prompt", exact=True).fill(story + " big")
    assert "The prompt has changed" in page.locator("#answer .hint").inner_text()


def test_stopped_work_is_said_and_can_be_taken_up(opened: Callable[..., Any], demo: Any, story: str) -> None:
    page = opened()
    generate(page, story)
    with holding(demo):  # so that no work can end before it is stopped
        page.locator(".words button").first.click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name=re.compile("heta.*not run")).wait_for()
    page.get_by_label("another method").select_option("recency")
    page.locator("#view .kicker", has_text="recency").wait_for()


def test_a_click_on_a_waiting_method_begins_it_while_others_run(
    opened: Callable[..., Any], demo: Any, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heta_lens.web.answers.PATIENT", 0.0)
    page = opened()
    generate(page, story)
    page.locator(".words button").first.click()
    page.locator("#says", has_text="careful takes about").wait_for()
    with holding(demo):
        for name in ("fast", "leave_one_out"):
            page.get_by_role("button", name=re.compile(f"^{name} takes about")).click()
    for name in ("fast", "leave_one_out"):
        page.get_by_role("button", name=re.compile(rf"^{name} [\d.]+ s")).wait_for()


def test_a_method_that_does_not_exist_is_not_asked_again(
    opened: Callable[..., Any], story: str, errors: list[str]
) -> None:
    page = opened()
    generate(page, story)
    explain(page)
    page.get_by_text("Explain another target").click()
    page.get_by_label("Method", exact=True).fill("leave_on_out")
    page.get_by_label("Method", exact=True).press("Enter")
    page.locator("#says.error", has_text="did you mean 'leave_one_out'?").wait_for()
    assert page.locator(".tabs button", has_text="leave_on_out").count() == 0
    assert page.locator("#view:not(.stale) .kicker", has_text="careful").count() == 1
    explain(page, 1)
    assert page.locator("#says.error").count() == 0 and errors.pop().endswith("400 (Bad Request)")


def test_a_comparison_lets_the_other_methods_go_on(opened: Callable[..., Any], demo: Any, story: str) -> None:
    page = opened()
    generate(page, story)
    explain(page)
    with holding(demo):
        page.get_by_label("another method").select_option("recency")
        page.get_by_role("button", name=re.compile(r"recency.*…")).wait_for()
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Agreement", exact=True).wait_for()
    page.get_by_role("button", name=re.compile(r"recency [\d.]+ s")).wait_for()
    assert page.get_by_role("button", name="Compare").get_attribute("aria-pressed") == "true"


def test_with_the_keyboard_only(opened: Callable[..., Any], story: str) -> None:
    page = opened()
    page.get_by_label("prompt", exact=True).focus()
    page.keyboard.insert_text(story)
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="whole answer").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    page.locator(".words button").first.focus()
    page.keyboard.press("Enter")
    page.locator("#view .strip").first.wait_for()
    page.locator("#stop").wait_for(state="hidden")
    while not page.evaluate("() => document.activeElement.shadowRoot?.activeElement?.matches('.strip')"):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#pinned").inner_text().startswith("If “")
    while not page.evaluate("() => document.activeElement.textContent === 'See'"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#outcome table").wait_for()


def test_a_reload_keeps_the_question_and_its_results(opened: Callable[..., Any], running: App, story: str) -> None:
    page = opened()
    generate(page, story)
    explain(page)
    pin(page, "jar")
    said = outcome(page)
    page.get_by_role("button", name="How does it get there?").click()
    page.locator("#circuit svg").wait_for()
    before = running.history.latest()
    page.reload()
    page.locator("#view h2", has_text="Why “jar”?").wait_for()
    assert page.get_by_label("prompt", exact=True).input_value() == story
    page.locator("#stop").wait_for(state="hidden")
    assert running.history.latest() == before and page.locator(".tabs small", has_text=re.compile(r"\d s")).count() >= 3
    assert page.locator("#outcome").inner_text() == said and "If “jar” at" in page.locator("#pinned").inner_text()
    assert page.locator("#circuit svg").is_visible()
    page.get_by_label("What happens to the token").select_option("delete")
    assert not page.locator("#outcome").inner_text() and page.locator("#circuit svg").is_visible()
    page.locator(".words button").nth(1).click()
    page.reload()  # before a result
    page.locator("#view h2", has_text="Why “.”?").wait_for()
    page.locator("#stop").wait_for(state="hidden")


def test_a_refused_question_leaves_the_one_before(opened: Callable[..., Any], story: str) -> None:
    page = opened()
    generate(page, story)
    explain(page)
    page.get_by_label("prompt", exact=True).fill("")
    page.get_by_role("button", name="Explain the next token").click()
    page.locator("#says.error").wait_for()
    assert "Why “jar”?" in page.locator("#view h2").inner_text() and page.locator(".words button").count() == 3


def test_another_question_ends_the_one_before(opened: Callable[..., Any], running: App, story: str) -> None:
    page = opened()
    generate(page, story)
    for place in (0, 1, 0, 1):
        page.locator(".words button").nth(place).click()
    page.locator("#view h2", has_text="Why “.”?").wait_for()
    page.locator("#stop").wait_for(state="hidden")
    assert not running.active


def test_a_server_that_is_gone_and_another_start(
    opened: Callable[..., Any], demo: Any, story: str, errors: list[str]
) -> None:
    first = app(demo, browser=False)
    page = opened(first.address)
    generate(page, story)
    first.stop()
    page.locator(".words button").first.click()
    page.locator("#says.error", has_text="The server does not respond. Start the app again").wait_for()
    second = app(demo, browser=False, port=int(first.address.split(":")[2].partition("/")[0]))
    page.locator(".words button").first.click()
    page.locator("#says.error", has_text="This address belongs to an earlier start of the app").wait_for()
    second.stop()
    errors.clear()  # of connections that failed


def test_history_in_the_page(opened: Callable[..., Any], demo: Any, story: str, tmp_path: Path) -> None:
    first = app(demo, browser=False, state=tmp_path / "state.db")
    page = opened(first.address)
    generate(page, story)
    explain(page)
    first.stop()
    second = app(demo, browser=False, state=tmp_path / "state.db")
    page = opened(second.address)
    page.get_by_text("History").click()
    page.get_by_role("button", name=re.compile("Why “jar”. · fast")).first.click()
    page.locator("#view h2", has_text="Why “jar”?").wait_for()
    assert page.get_by_label("prompt", exact=True).input_value() == story
    pin(page, "Alba")
    assert "With “Alba” masked" in outcome(page)
    second.stop()


HOSTILE = (
    "</script><script>document.title = 'hurt'</script> <img src=x onerror=\"document.title = 'hurt'\"> \u202e \x01"
)


@pytest.mark.parametrize("where", ["prompt", "history"])
def test_hostile_texts_are_shown_and_not_run(
    opened: Callable[..., Any], demo: Any, story: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = type(demo.tokenizer).decode
    monkeypatch.setattr(
        type(demo.tokenizer), "decode", lambda self, ids, **how: write(self, ids, **how).replace("jar", HOSTILE)
    )
    started = app(demo, browser=False, state=tmp_path / "state.db")
    page = opened(started.address)
    title = page.title()
    generate(page, story)
    explain(page)
    if where == "history":
        page.reload()
        page.get_by_text("History").click()
        page.locator("#history li button").first.click()
        page.locator("#view .strip").first.wait_for()
    assert page.title() == title and "onerror" in page.locator("#view .strip").first.inner_text()
    started.stop()


@pytest.mark.parametrize(("width", "mode"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_the_page_is_accessible_and_fits(opened: Callable[..., Any], story: str, width: int, mode: Any) -> None:
    page = opened(viewport={"width": width, "height": 900}, color_scheme=mode, bypass_csp=True)
    generate(page, story)
    explain(page)
    pin(page, "Alba")
    outcome(page)
    page.get_by_text("Explain another target").click()
    page.add_script_tag(content=files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    rules = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
    found = page.evaluate("rules => axe.run(document, rules)", rules)["violations"]
    serious = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert not serious
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
