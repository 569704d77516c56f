"""Make the picture of the README and the first page: a claim, its test and the mechanism, on SmolLM2.

    python -m docs.story

Chromium photographs the picture, light and dark. Every number in the picture is computed here.
"""

from html import escape
from io import BytesIO
from typing import Any

from PIL import Image

import heta_lens
from docs import pictures
from docs.gallery import CHROMIUM, COLOURS, FOLDER, QUESTION, SCHEMES, SMOLLM2
from heta_lens import causal

WIDTH, HEIGHT, SHOWN = 1200, 630, 3
STYLE = """
:root { color-scheme: light dark; --ink: #1b1d22; --quiet: #5b6170; --paper: #fff; --route: #2171d9; --against: #c9540a;
  --score: 33 113 217; --depth: .8; --line: #d9dce2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e9ebef; --quiet: #a5adba; --paper: #17191d; --route: #6aa5ff;
  --against: #f0913a; --score: 58 129 228; --depth: .95; --line: #3a3e46; } }
body { margin: 0; width: 1200px; height: 630px; box-sizing: border-box; padding: 34px 44px; overflow: hidden;
  background: var(--paper); color: var(--ink); font: 20px/1.5 "DejaVu Sans", sans-serif; }
main { display: grid; grid-template-columns: 1fr 440px; grid-template-rows: auto auto 1fr; gap: 6px 44px; }
h1 { font-size: 31px; margin: 0 0 18px; letter-spacing: -.02em; grid-column: 1 / -1; }
h2 { font-size: 16px; margin: 0 0 8px; color: var(--quiet); }
code { font: 13px "DejaVu Sans Mono", monospace; color: var(--route); }
.prompt { white-space: pre-wrap; font-size: 21px; line-height: 1.85; margin: 0 0 26px; }
.prompt b { font-weight: 400; border-radius: 4px; padding: 2px 0; background: rgb(var(--score) / var(--a)); }
.prompt b.strong { color: #fff; }
.prompt strong { border: 2px solid var(--ink); border-radius: 7px; padding: 1px 9px; margin-left: 6px;
  font-weight: 400; }
table { border-collapse: collapse; font-size: 20px; }
td, th { padding: 3px 18px 3px 0; text-align: left; font-weight: 400; }
th { color: var(--quiet); font-size: 14px; }
td i { display: inline-block; height: 11px; background: var(--route); border-radius: 2px; margin-right: 8px; }
.circuit { grid-column: 2; grid-row: 2 / 4; }
.circuit svg { width: 440px; height: 400px; }
p.note { font-size: 14px; color: var(--quiet); margin: 4px 0 0; }
"""


def story(model: Any) -> str:
    tokens = model.to_tokens(QUESTION)
    _, cache = model.run_with_cache(tokens)
    attribution = heta_lens.attribute(cache, tokens=tokens, method="careful")
    best = attribution.top(1)[0]
    found = causal.components(cache, best.positions, tokens=tokens)
    tested = causal.what_if(cache, best.positions, tokens=tokens)
    most = float(best.score)
    spans = []
    for token, score, special in zip(attribution.tokens, attribution.scores.tolist(), attribution.special, strict=True):
        depth = max(0.0, score) / most
        if not special:
            bare, style = token.lstrip(" "), f"--a:calc({depth:.3f} * var(--depth))"
            strong = ' class="strong"' * (depth > 0.5)
            spans.append(f'{" " * (len(token) - len(bare))}<b{strong} style="{style}">{escape(bare)}</b>')
    answer = model.tokenizer.decode([attribution.target])
    rows = "".join(
        f"<tr><td>{escape(token)}</td>{bar(row['before'])}{bar(row['after'])}</tr>"
        for token, row in tested[:SHOWN].iterrows()
    )
    share, place = f"{found.together[-1]:.0%} of what masking takes away", [*best.positions]
    return f"""<!doctype html><meta charset="utf-8"><style>{STYLE}</style><main>
<h1>Which token made SmolLM2 say “{escape(answer.strip())}”?</h1>
<section><h2>1 · The claim <code>attribute(cache, method="careful")</code></h2>
<div class="prompt">{"".join(spans)}<strong>{escape(answer.strip())}</strong></div></section>
<section><h2>2 · The test: mask it <code>causal.what_if(cache, {place})</code></h2>
<table><tr><th>next token</th><th>before</th><th>after</th></tr>{rows}</table></section>
<section class="circuit"><h2>3 · The mechanism <code>causal.components(cache, {place})</code></h2>
{found.circuit.drawing}
<p class="note">Heads (circles) and MLPs (squares). The {len(found.together)} named ones together restore {share};
the head on the blue route alone, {found.route_share:.0%}.</p></section>
</main>"""


def bar(share: float) -> str:
    written = "&lt; 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"
    return f'<td><i style="width:{180 * share:.0f}px"></i>{written}</td>'


def main() -> None:
    from playwright.sync_api import sync_playwright

    path, page_of_story = FOLDER / "story.webp", story(heta_lens.load_model(SMOLLM2))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, name in zip(SCHEMES, (path, pictures.dark(path)), strict=True):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page.set_content(page_of_story)
            with Image.open(BytesIO(page.screenshot())) as photo:
                pictures.write(photo, name, COLOURS)
        browser.close()


if __name__ == "__main__":
    main()
