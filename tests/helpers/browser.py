"""Pages that views are: read as text, and acted on by a script in a headless browser."""

import json
import re
import shutil
import subprocess
from base64 import b64decode
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heta_lens._util.html_view import View
from heta_lens.attribution import Attribution

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
OFFLINE = ("--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND")
PATIENCE = (20_000, 200_000)  # milliseconds of the page's time; on a busy machine, no frame may be drawn in the first
DARK = "--blink-settings=preferredColorScheme=0"
WATCH = """<script>
const errors = [], complain = console.error;
window.addEventListener("error", event => errors.push(String(event.message)));
console.error = (...said) => { errors.push(said.join(" ")); complain(...said); };
</script>"""
TOOLS = """
const hosts = () => [...document.querySelectorAll(".heta-lens")];
const roots = () => [document, ...hosts().flatMap(host => host.shadowRoot ?? [])];
const $$ = name => roots().flatMap(root => [...root.querySelectorAll(name)]), $ = name => $$(name)[0] ?? null;
const focused = ({ activeElement: own } = document) => own.shadowRoot ? focused(own.shadowRoot) : own;
const chips = () => $$(".strip b"), tip = () => $(".tip").textContent, card = () => $(".card").textContent;
const point = element => element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const choose = (at, value) => { const list = $$(".bar select")[at]; list.value = value; list.onchange(); };
const tick = (at, on) => { const box = $$(".bar input")[at]; box.checked = on; box.onchange(); };
const press = (key, more = {}) => focused().dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
const depth = chip => +getComputedStyle(chip).getPropertyValue("--a");
const channels = colour => colour.match(/[\\d.]+/g).map(Number);
const over = ([r, g, b, a = 1], under) => [r, g, b].map((part, at) => part * a + under[at] * (1 - a));
const linear = part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4;
const light = colour => {
  const [red, green, blue] = colour.map(part => linear(part / 255));
  return .2126 * red + .7152 * green + .0722 * blue;
};
const contrast = (first, second) => {
  const [high, low] = [light(first), light(second)].sort((a, b) => b - a);
  return (high + .05) / (low + .05);
};
const paper = () => {
  const sheet = document.createElement("i");
  sheet.style.background = "Canvas";
  document.body.append(sheet);
  const colour = channels(getComputedStyle(sheet).backgroundColor);
  sheet.remove();
  return colour;
};
const background = element => {
  if (!element) return paper();
  const own = channels(getComputedStyle(element).backgroundColor);
  return own[3] === undefined ? own : over(own, background(element.parentElement ?? element.getRootNode().host));
};
const legibility = element => {
  const under = background(element);
  return contrast(over(channels(getComputedStyle(element).color), under), under);
};
"""


def run(page: str, script: str, folder: Path, *flags: str) -> Any:
    """What the script returns after it acted on the page; errors of the page, and requests, are failures."""
    path = folder / "page.html"
    report = f"""<script>window.addEventListener("load", async () => {{
      let result;
      try {{ result = await (async () => {{ {TOOLS} {script} }})(); }}
      catch (error) {{ errors.push(String(error.stack)); }}
      const requests = performance.getEntriesByType("resource").map(entry => entry.name);
      const sheet = document.createElement("pre");
      sheet.id = "result";
      sheet.textContent = JSON.stringify({{ result, errors, requests }});
      document.body.replaceChildren(sheet);
    }});</script>"""
    path.write_text(page.replace("<title>", WATCH + "<title>", 1) + report, encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, *OFFLINE, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    content, shown = None, ""
    for patience in PATIENCE:
        if content is None:
            timed = [*command, f"--virtual-time-budget={patience}"]
            shown = subprocess.run(timed, capture_output=True, text=True, timeout=120, check=True).stdout
            content = re.search('<pre id="result">(.*?)</pre>', shown, re.DOTALL)
    assert content is not None, shown[:2000]
    outcome = json.loads(unescape(content[1]))
    assert outcome["errors"] == [] and outcome["requests"] == [], outcome
    return outcome.get("result")


CHIP = re.compile(r'<b(?: class="([^"]*)")?(?: style="--a:([^"]*)")?>(.*?)</b>', re.DOTALL)


def strip(view: View) -> str:
    """The part of a page that has the tokens."""
    (inner,) = re.findall(
        r'<div class="strip"[^>]*>(.*?)</div>\n(?:<p class="caption">.*?</p>\n)?</div>\n<aside',
        view.fragment,
        re.DOTALL,
    )
    return inner


def chips(view: View) -> list[str]:
    """What is written on the tokens of a page."""
    return [unescape(text) for _, _, text in CHIP.findall(strip(view))]


def depths(view: View) -> list[float]:
    """How deep the tokens' colours are, below 0 for what speaks against the target."""
    return [float(depth or 0) * (-1 if "n" in kind.split() else 1) for kind, depth, _ in CHIP.findall(strip(view))]


def evidence(view: View) -> list[str]:
    return [unescape(text) for kind, _, text in CHIP.findall(strip(view)) if "e" in kind.split()]


def text(view: View) -> str:
    """All that is written between and on the tokens, without the roles of a chat and the prediction at the end."""
    plain = re.sub(r'<div class="role".*?</div>|<span class="end">.*', "", strip(view), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", plain))


def data(view: View) -> dict[str, Any]:
    """What the script is given."""
    (content,) = re.findall(r'<script type="application/json">(.*?)</script>', view.fragment, re.DOTALL)
    return json.loads(content)


def numbers(packed: str) -> list[float]:
    return np.frombuffer(b64decode(packed), "<f4").tolist()


def values(view: View) -> dict[str, list[float]]:
    """The values that the tokens can be coloured by."""
    return {own["name"]: numbers(own["values"]) for own in data(view)["values"]}


def written(tokens: list[str], scores: list[float] | None = None, **more: Any) -> Attribution:
    """An attribution of a text that these tokens write."""
    lengths = torch.tensor([len(token) for token in tokens])
    stops = lengths.cumsum(0)
    made = Attribution(
        ids=torch.arange(len(tokens)),
        tokens=tuple(tokens),
        positions=torch.arange(len(tokens)),
        offsets=torch.stack([stops - lengths, stops], 1),
        special=torch.zeros(len(tokens), dtype=torch.bool),
        text="".join(tokens),
        target=1,
        target_text=" x",
        method="heta",
        scores=torch.arange(1.0, len(tokens) + 1) if scores is None else torch.tensor(scores),
    )
    return replace(made, **more)
