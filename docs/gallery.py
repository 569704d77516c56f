"""Make the pictures of docs/gallery.md, the README and the home page, on SmolLM2 and the demo model.

    python docs/gallery.py

Pages are photographed by a headless Chromium, if there is one; all other pictures are made in any case.
"""

import shutil
import subprocess
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

import heta_lens
from heta_lens import causal, plots
from heta_lens._util.html_view import View
from heta_lens.data import recall
from heta_lens.data.suites import suite
from heta_lens.evaluation import evaluate, write_report

FOLDER = Path(__file__).with_name("gallery")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1.25")
# Methods that are compared on stories.
COMPARED = ("heta", "leave_one_out", "attn_lrp", "integrated_gradients", "attention_rollout", "random")
SMOLLM2 = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"  # made by `make real-models`
RECIPE = "Café list:\n- 2 eggs\n- 100 g flour\n\nStep 1: Don't mix the eggs with the"
EVIDENCE = "Julia moved to Lisbon in 2019."
QUESTION = (
    f"Tom has lived in Oslo since he was born. {EVIDENCE} Their cousin Maria works in Vienna.\n"
    "Question: In which city does Julia live now?\nAnswer: Julia lives in"
)
FIVE_MINUTES = (
    "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
)
STORIES, METRIC = 20, "evidence_mass"
COLOURS = 256  # of a palette
DARK = "--blink-settings=preferredColorScheme=0"


class Photo(NamedTuple):
    view: View
    height: int
    flags: tuple[str, ...] = ()


def pictures() -> Iterator[tuple[str, View | Photo]]:
    """Every picture with its file's name."""
    if SMOLLM2.is_dir():
        yield from of_a_real_model(heta_lens.load_model(SMOLLM2))
    model = heta_lens.load_demo_model()
    story = next(recall.stories("test", facts=4))
    tokens, other = model.to_tokens(story.text), model.to_tokens(story.counterfactual.text)
    _, cache = model.run_with_cache(tokens)
    attribution = heta_lens.attribute(cache, story.answer, tokens=tokens, interactions=True)
    yield "bars.webp", plots.bars(attribution)
    tokens = model.to_tokens(FIVE_MINUTES)
    yield "five_minutes.webp", Photo(heta_lens.attribute(model.run_with_cache(tokens)[1], tokens=tokens).plot(), 470)
    tokens = model.to_tokens(story.text)
    yield "interactions.webp", plots.matrix(attribution)
    _, corrupted = model.run_with_cache(other)
    yield "patching.webp", causal.patch(cache, corrupted, story.answer, tokens=tokens, corrupted_tokens=other).plot()


def of_a_real_model(model: Any) -> Iterator[tuple[str, View | Photo]]:
    recipe = model.to_tokens(RECIPE)
    explained = heta_lens.attribute(model.run_with_cache(recipe)[1], tokens=recipe, method="careful")
    yield "recipe.webp", Photo(plots.page(explained), 560)
    tokens = model.to_tokens(QUESTION)
    _, cache = model.run_with_cache(tokens)
    by = {name: heta_lens.attribute(cache, tokens=tokens, method=name) for name in ("careful", "fast", "leave_one_out")}
    prediction = heta_lens.Prediction.from_cache(cache, tokens=tokens)
    evidence = prediction.positions_of(EVIDENCE)
    page = plots.page(by["careful"], marked=evidence, note="underlined: the sentence with the answer")
    yield "page.webp", Photo(page, 560)
    yield "page_dark.webp", Photo(page, 560, (DARK,))
    yield "tokens.webp", page
    yield "comparison.webp", Photo(heta_lens.compare([*by.values()]), 680)
    reliance = heta_lens.context_reliance(model, QUESTION, EVIDENCE, answer=6)
    yield "reliance.webp", Photo(reliance.plot(), 700)
    answered = model.to_tokens(QUESTION + reliance.answer)
    _, cache = model.run_with_cache(answered)
    span = heta_lens.attribute_span(cache, tokens.shape[1], tokens=answered, method="fast")
    yield "span.webp", Photo(plots.page(span), 760)
    yield "matrix.webp", plots.matrix(span)


def photograph(photo: Photo) -> bytes:
    with TemporaryDirectory() as folder:
        page, png = photo.view.save(Path(folder) / "page.html"), Path(folder) / "page.png"
        size = f"--window-size=960,{photo.height}"
        command = [str(CHROMIUM), *FLAGS, *photo.flags, size, f"--screenshot={png}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        return png.read_bytes()


def keep(png: Any, name: str) -> None:
    """Write a picture as a lossless WebP file of few colours, which is small."""
    with Image.open(BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    few.convert("RGB").save(FOLDER / name, lossless=True)


def app_stills(model: Any) -> None:
    """Photograph the app while it is asked."""
    from playwright.sync_api import sync_playwright

    running = heta_lens.app(model, browser=False)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 640, "height": 640}, device_scale_factor=1.25)
        page.set_default_timeout(300_000)

        def still(name: str, top: str) -> None:
            page.locator(top).evaluate("element => window.scrollTo(0, element.getBoundingClientRect().top + scrollY)")
            keep(page.screenshot(), name)

        page.goto(running.address)
        page.get_by_label("prompt", exact=True).fill(QUESTION)
        page.locator("#tokens").fill("6")
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("button", name="whole answer").wait_for()
        page.locator("#stop").wait_for(state="hidden")
        page.locator(".words button").first.click()
        page.locator("#view .strip").wait_for()
        page.locator("#stop").wait_for(state="hidden")
        still("app_word.webp", "#answer")
        page.locator("#view .strip b", has_text="Lisbon").click()
        page.get_by_role("button", name="See").click()
        page.locator("#outcome table").wait_for()
        still("app_what_if.webp", "#what-if")
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Agreement", exact=True).wait_for()
        still("app_compare.webp", "#why")
        browser.close()
    running.stop()


def terminal(path: Path) -> None:
    model = heta_lens.load_demo_model()
    story = next(recall.stories("test", facts=4))
    tokens = model.to_tokens(story.text)
    attribution = heta_lens.attribute(model.run_with_cache(tokens)[1], story.answer, tokens=tokens)
    console = Console(record=True, width=100, color_system="truecolor", force_terminal=True, file=StringIO())
    console.print(plots.terminal(attribution))
    console.save_svg(str(path), title="heta-lens attribute", theme=DEFAULT_TERMINAL_THEME)


def forest(path: Path) -> None:
    """The figure of a small evaluation's report."""
    with TemporaryDirectory() as temporary:
        model, prompts, folder = heta_lens.load_demo_model(), suite("recall", limit=STORIES), Path(temporary)
        evaluate(model, prompts, COMPARED, METRIC, folder, facts={"suite": "recall"})
        write_report(folder)
        (drawn,) = (folder / "figures").glob(f"*{METRIC}.svg")
        shutil.copyfile(drawn, path)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    forest(FOLDER / "forest.svg")
    for name, picture in pictures():
        if isinstance(picture, View):
            keep(picture.exports[".png"](), name)
        elif CHROMIUM is not None:
            keep(photograph(picture), name)
    terminal(FOLDER / "terminal.svg")
    if CHROMIUM is not None and SMOLLM2.is_dir():
        app_stills(heta_lens.load_model(SMOLLM2))


if __name__ == "__main__":
    main()
