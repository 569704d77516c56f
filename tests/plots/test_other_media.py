"""Views in print, and where a system forces colours of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import browser
from heta_lens import plots
from heta_lens.span_attribution import SpanAttribution

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [browser.needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with playwright.sync_playwright() as started:
        own = started.chromium.launch(executable_path=browser.CHROMIUM, args=["--no-sandbox"])

        def open_page(content: str, **media: str) -> Any:
            path: Path = tmp_path_factory.mktemp("page") / "page.html"
            path.write_text(content, encoding="utf-8")
            page = own.new_page(viewport={"width": 700, "height": 900})
            page.emulate_media(**media)
            page.goto(path.as_uri())
            return page

        yield open_page
        own.close()


def span(count: int) -> SpanAttribution:
    tokens = [f" word{number}" for number in range(count)]
    steps = [browser.written(tokens[:end], [*map(float, range(end))]) for end in range(count - 4, count)]
    return SpanAttribution(tuple(steps), tuple(tokens))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stay_where_a_system_forces_its_own(opened: Callable[..., Any], scheme: str) -> None:
    page = opened(plots.page(browser.written(list("abcd"))).page, forced_colors="active", color_scheme=scheme)
    colour = "chip => getComputedStyle(chip).backgroundColor"
    colours = [page.locator(".strip b").nth(place).evaluate(colour) for place in range(4)]
    assert len({*colours}) == 4 and not {"rgb(255, 255, 255)", "rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"} & {*colours}


def test_the_whole_matrix_of_a_span_is_printed(opened: Callable[..., Any]) -> None:
    page = opened(plots.page(span(90)).page)
    canvas = page.locator(".heat canvas")
    seen = canvas.evaluate("canvas => canvas.width")
    page.emulate_media(media="print")
    after = "requestAnimationFrame(() => requestAnimationFrame(() => done([canvas.width, canvas.clientWidth])))"
    drawn, shown = canvas.evaluate(f"canvas => new Promise(done => {after})")  # the next picture but one
    assert seen < 90 * 16 <= drawn and shown <= 700
