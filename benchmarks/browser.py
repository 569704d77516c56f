"""How fast the page of a long text opens in a browser, and how fast the page's controls answer.

The text and the scores are random: what a browser does depends on the number of tokens, and on how many are folded.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from playwright.sync_api import Page, sync_playwright

from benchmarks import pages
from docs.gallery import CHROMIUM
from heta_lens.attribution import Attribution

LENGTHS = (300, 4_000, 8_000)
TIMES = 5
OPENED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
# Milliseconds from an event to the end of the next frame, in which its result is visible.
ANSWER = """([selector, act]) => new Promise(done => {
  const root = document.querySelector(".heta-lens").shadowRoot, element = root.querySelector(selector);
  if (!element) return done(null);
  const begun = performance.now(), finish = () => done(performance.now() - begun);
  if (act === "click") element.click();
  else { element.value = act; element.dispatchEvent(new Event("change")); }
  requestAnimationFrame(() => { root.host.offsetHeight; finish(); });
})"""
CONTROLS = {
    "a token": (".strip b", "click"),
    "colour by word": ("select", "words"),
    "colour by sentence": ("select", "sentences"),
    "a place in the strip": (".minimap", "click"),
    "unfold a stretch": ("button.fold, .fold", "click"),
    "open the table": (".more summary", "click"),
    "sort the table": (".sheet th button", "click"),
}
LANES = {
    "all, one below another": ("label:nth-child(1) select", "all"),
    **{f"add up {unit}": ("label:nth-child(2) select", unit) for unit in ("words", "sentences", "tokens")},
    **{name: CONTROLS[name] for name in ("a token", "a place in the strip", "unfold a stretch")},
    "one alone": ("label:nth-child(1) select", "0"),
}


def attribution(tokens: int) -> Attribution:
    """Return random scores of a text in sentences of 20 words, most of which lie in a tenth of the sentences."""
    drawn = torch.Generator().manual_seed(0)
    words = [f" w{place}" + "." * (place % 20 == 19) for place in range(tokens)]
    strong = (torch.rand(tokens // 20 + 1, generator=drawn) < 0.1).repeat_interleave(20)[:tokens]
    scores = torch.rand(tokens, generator=drawn) ** 4 * (strong + 0.01)
    ends = torch.tensor([len(word) for word in words]).cumsum(0)
    return Attribution(
        ids=torch.arange(tokens), tokens=tuple(words), positions=torch.arange(tokens), text="".join(words),
        offsets=torch.stack([torch.cat([ends.new_zeros(1), ends[:-1]]), ends], 1), target=0, target_text=" w0",
        special=torch.zeros(tokens, dtype=torch.bool), method="leave_one_out", scores=scores,
    )  # fmt: skip


def with_parts(tokens: int) -> Attribution:
    """Return the same scores with two parts, which the page can show below the scores."""
    own = attribution(tokens)
    return replace(own, method="heta", parts={"gate": own.scores.flip(0), "information": own.scores.square()})


def measured(page: Page, shown: Attribution, controls: Mapping[str, tuple[str, str]]) -> list[str]:
    with TemporaryDirectory() as folder:
        file = shown.plot().save(f"{folder}/page.html")
        opened, answers = list[float](), dict[str, list[float]]()
        for _ in range(TIMES):
            page.goto(file.as_uri())
            opened.append(page.evaluate(OPENED) / 1_000)
            for name, control in controls.items():
                answer: Any = page.evaluate(ANSWER, list(control))
                answers.setdefault(name, []).extend([] if answer is None else [answer])
        size = file.stat().st_size / 1e6
    cells = [f"{median(own):.0f}" if own else "–" for own in answers.values()]
    return [f"{len(shown):,}", f"{size:.2f}", f"{median(opened):.2f}", *cells]


def write() -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1_200, "height": 900})
        tables = [
            pages.Table(
                title,
                ["tokens", "MB", "opens, s", *(f"{name}, ms" for name in controls)],
                [measured(page, make(tokens), controls) for tokens in LENGTHS],
            )
            for title, make, controls in (
                ("Pages of long texts", attribution, CONTROLS),
                ("Three rows of colours", with_parts, LANES),
            )
        ]
        browser.close()
    pages.write("browser", tables)
