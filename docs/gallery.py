"""Make the pictures of docs/gallery.md, the README and the home page, on SmolLM2 and the demo model.

    python -m docs.gallery

Every picture is made for light and for dark pages. Pages are photographed by a headless Chromium, if there is one; all
other pictures are made in any case.
"""

import re
import shutil
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI

import heta_lens
from docs import pictures
from heta_lens import causal, plots
from heta_lens._util.html_view import View
from heta_lens.data import recall
from heta_lens.data.suites import suite
from heta_lens.evaluation import evaluate, write_report

FOLDER = Path(__file__).with_name("gallery")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Methods that are compared on stories.
COMPARED = ("heta", "leave_one_out", "attn_lrp", "integrated_gradients", "attention_rollout", "random")
SMOLLM2 = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct"  # made by `make real-models`
RECIPE = "Café list:\n- 2 eggs\n- 100 g flour\n\nStep 1: Don't mix the eggs with the"
EVIDENCE = "Julia moved to Lisbon in 2019."
QUESTION = (
    f"Tom has lived in Oslo since he was born. {EVIDENCE} Their cousin Maria works in Vienna.\n"
    "Question: In which city does Julia live now?\nAnswer: Julia lives in"
)
WRITTEN, MORE = "Anna has a red bike, and Ben has a blue car. Ben drives his", 5  # tokens that SmolLM2 adds
FIVE_MINUTES = (
    "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
)
IN_DARK = {"#ffffff": "#141414", "#222222": "#e9ebef", "#777777": "#a5adba"}  # colours of the forest plot
STORIES, METRIC = 20, "evidence_mass"
COLOURS = 256  # of a palette
SCHEMES: Any = ("light", "dark")
WIDTH = 720  # pixels of a page: letters are as large as the text around the picture
STILL = """.heta-view { padding: 12px } .stage, .link { margin-bottom: 0 !important }
.bar, .hint, .more, .about, .tip, .link p, %s { display: none !important }"""


class Photo(NamedTuple):
    """A page, and what its photograph leaves out besides switches, hints and folded parts, as a CSS selector."""

    view: View
    without: str = "button"


def views() -> Iterator[tuple[str, View | Photo]]:
    """Every picture with its file's name."""
    if SMOLLM2.is_dir():
        yield from of_a_real_model(heta_lens.load_model(SMOLLM2))
    model = heta_lens.load_demo_model()
    tokens, other = (model.to_tokens(FIVE_MINUTES.replace("box", box)) for box in ("box", "pan"))
    cache, corrupted = (model.run_with_cache(prompt)[1] for prompt in (tokens, other))
    explained = heta_lens.attribute(cache, " box", tokens=tokens, method="leave_one_out")
    yield "five_minutes.webp", Photo(explained.plot())
    yield "interactions.webp", plots.matrix(heta_lens.attribute(cache, tokens=tokens, interactions=True))
    yield "patching.webp", causal.patch(cache, corrupted, " box", tokens=tokens, corrupted_tokens=other).plot()


def of_a_real_model(model: Any) -> Iterator[tuple[str, View | Photo]]:
    recipe = model.to_tokens(RECIPE)
    explained = heta_lens.attribute(model.run_with_cache(recipe)[1], tokens=recipe, method="careful")
    yield "recipe.webp", Photo(plots.page(explained))
    tokens = model.to_tokens(QUESTION)
    _, cache = model.run_with_cache(tokens)
    by = {name: heta_lens.attribute(cache, tokens=tokens, method=name) for name in ("careful", "leave_one_out", "fast")}
    prediction = heta_lens.Prediction.from_cache(cache, tokens=tokens)
    evidence = prediction.positions_of(EVIDENCE)
    page = plots.page(by["careful"], marked=evidence, note="underlined: the sentence with the answer")
    yield "page.webp", Photo(page)
    yield "tokens.webp", page
    (lisbon,) = prediction.positions_of(" Lisbon")
    yield "components.webp", causal.components(cache, [lisbon], tokens=tokens, scale="log_odds").plot()
    yield "comparison.webp", Photo(heta_lens.compare([*by.values()]))
    yield "reliance.webp", Photo(heta_lens.context_reliance(model, QUESTION, EVIDENCE, answer=6).plot())
    prompt = model.to_tokens(WRITTEN)
    tokens = model.generate(prompt, max_new_tokens=MORE, do_sample=False, verbose=False)
    _, cache = model.run_with_cache(tokens)
    span = heta_lens.attribute_span(cache, prompt.shape[1], tokens=tokens, method="fast")
    yield "span.webp", Photo(plots.page(span), ".card, .scale > small")
    yield "matrix.webp", plots.matrix(span)
    yield "bars.webp", plots.bars(heta_lens.attribute(model.run_with_cache(prompt)[1], tokens=prompt), top=10)


def photograph(photo: Photo, path: Path) -> None:
    """Photograph the view of a page in light and in dark colours."""
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as driver:
        address = photo.view.save(Path(folder) / "page.html").as_uri()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, file in zip(SCHEMES, (path, pictures.dark(path)), strict=True):
            size: Any = {"width": WIDTH, "height": WIDTH}
            page = browser.new_page(viewport=size, device_scale_factor=2, color_scheme=scheme)
            page.goto(address)
            view = page.locator(".heta-view")
            view.locator("style").evaluate("(style, css) => { style.textContent += css; }", STILL % photo.without)
            write(view.screenshot(), file)
        browser.close()


def write(png: bytes, path: Path) -> None:
    with Image.open(BytesIO(png)) as picture:
        pictures.write(picture, path, COLOURS)


def app_stills(model: Any) -> None:
    """Photograph the app while it is asked."""
    from playwright.sync_api import sync_playwright

    running = heta_lens.app(model, browser=False)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        size: Any = {"width": WIDTH, "height": WIDTH}
        page = browser.new_page(viewport=size, device_scale_factor=2)
        page.set_default_timeout(300_000)

        def still(name: str, first: str, last: str) -> None:
            """Photograph the page from the top of an element to the bottom of another."""
            page.evaluate("scrollTo(0, 0)")
            top, bottom = (page.locator(element).first.bounding_box() for element in (first, last))
            assert top is not None and bottom is not None
            height = bottom["y"] + bottom["height"] - top["y"] + 12
            clip: Any = {"x": 0, "y": top["y"], "width": WIDTH, "height": height}
            for scheme, file in zip(SCHEMES, (FOLDER / name, pictures.dark(FOLDER / name)), strict=True):
                page.emulate_media(color_scheme=scheme)
                write(page.screenshot(full_page=True, clip=clip), file)
            page.emulate_media(color_scheme="light")

        page.goto(running.address)
        page.get_by_label("prompt", exact=True).fill(QUESTION)
        page.locator("#tokens").fill("6")
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("button", name="whole answer").wait_for()
        page.locator("#stop").wait_for(state="hidden")
        page.locator(".words button").first.click()
        page.locator("#view .strip").wait_for()
        page.locator("#stop").wait_for(state="hidden")
        still("app_word.webp", "#answer", "#view .stage")
        page.locator("#view .strip b", has_text="Lisbon").click()
        page.get_by_role("button", name="See").click()
        page.locator("#outcome table").wait_for()
        still("app_what_if.webp", "#what-if", "#outcome")
        how, circuit = page.get_by_role("button", name="How does it get there?"), page.locator("#circuit svg")
        how.click()
        circuit.or_(how.filter(has_text="takes about")).wait_for()
        if not circuit.count():  # a long wait begins with a second click
            how.click()
        circuit.wait_for()
        still("app_components.webp", "#circuit", "#circuit")
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Agreement", exact=True).wait_for()
        still("app_compare.webp", "#why", "#view .stage")
        browser.close()
    running.stop()


def terminal(path: Path) -> None:
    model = heta_lens.load_demo_model()
    story = next(recall.stories("test", facts=4))
    tokens = model.to_tokens(story.text)
    attribution = heta_lens.attribute(model.run_with_cache(tokens)[1], story.answer, tokens=tokens)
    console = Console(record=True, width=86, color_system="truecolor", force_terminal=True, file=StringIO())
    console.print(plots.terminal(attribution))
    for theme, file in ((DEFAULT_TERMINAL_THEME, path), (MONOKAI, pictures.dark(path))):
        console.save_svg(str(file), title="heta-lens attribute", theme=theme, clear=False)


def forest(path: Path) -> None:
    """The figure of a small evaluation's report."""
    with TemporaryDirectory() as temporary:
        model, prompts, folder = heta_lens.load_demo_model(), suite("recall", limit=STORIES), Path(temporary)
        evaluate(model, prompts, COMPARED, METRIC, folder, facts={"suite": "recall"})
        write_report(folder)
        (drawn,) = (folder / "figures").glob(f"*{METRIC}.svg")
        light = drawn.read_text(encoding="utf-8")
    dark = re.sub("|".join(IN_DARK), lambda colour: IN_DARK[colour[0]], light)
    for file, svg in ((path, light), (pictures.dark(path), dark)):
        file.write_text(svg, encoding="utf-8")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    forest(FOLDER / "forest.svg")
    for name, picture in views():
        if isinstance(picture, View):
            pictures.keep(picture.exports[".png"](), FOLDER / name, COLOURS)
        elif CHROMIUM is not None:
            photograph(picture, FOLDER / name)
    terminal(FOLDER / "terminal.svg")
    if CHROMIUM is not None and SMOLLM2.is_dir():
        app_stills(heta_lens.load_model(SMOLLM2))


if __name__ == "__main__":
    main()
