"""A headless browser, for tests of pages: a script acts on a page, and what it returns comes back."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

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
const $ = name => document.querySelector(name), $$ = name => [...document.querySelectorAll(name)];
const chips = () => $$(".strip b"), tip = () => $(".tip").textContent;
const point = element => element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const choose = (at, value) => { const list = $$(".bar select")[at]; list.value = value; list.onchange(); };
const press = (key, more = {}) => document.activeElement.dispatchEvent(
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
  return own[3] === undefined ? own : over(own, background(element.parentElement));
};
const legibility = element => {
  const before = channels(getComputedStyle(element, "::before").backgroundColor || "rgba(0,0,0,0)");
  const under = background(element), painted = element.matches(".strip b") ? over(before, under) : under;
  return contrast(over(channels(getComputedStyle(element).color), painted), painted);
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
