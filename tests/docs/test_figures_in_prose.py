"""Hand-written pages state no measured figure, except those that are checked here against where they come from.

Code, outputs, parts between marks and included files are left out, and so are the items of `choosing` with a link to
the results, whose numbers `tests/benchmark_scripts/test_statements.py` computes.
"""

import re
from pathlib import Path

import jupytext
import pytest

from helpers import ROOT
from heta_lens import METHODS

DOCS = ROOT / "docs"
BY_SCRIPTS = {"results"}
PAGES = [
    *(page for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))] if page.stem not in BY_SCRIPTS),
    *sorted((ROOT / "notebooks").glob("*.py")),
]

COUNT = r"(?:\d[\d.,]*|one|two|three|four|five|six|seven|eight|nine|ten|twenty)"
PART = r"(?:half|third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?"
FIGURE = re.compile(
    rf"""\d\s?%|\bper\s?cent\b                                          # a percentage
    |(?<![\w.])0?\.\d                                                   # a share
    |\b{COUNT}\stimes\s(?:as|its|the|faster|slower|more|less)\b|\btwice\sas\b
    |\b{COUNT}\stimes?\sin\s\w|\b{COUNT}\sin\s(?:ten|a\shundred|\d)     # how often
    |\bin\s(?:every|all|no)\s(?:of\sthe\s)?(?:story|stories|prompts?)\b
    |\b(?:one|two|three|nearly|almost|about|over|under|(?:less|more)\sthan|a)(?:\sa|\sthe)?\s{PART}\b(?!\sprecision)
    |\b(?:{COUNT}|half\san?|an?)\s(?:minutes?|hours?|days?)\b|\b{COUNT}\s(?:seconds?|nats?)\b|\bmilliseconds?\b""",
    re.VERBOSE | re.IGNORECASE,
)
DEFINED = ["95 % interval", "95 % half-width", "p is at most 0.05", "Five minutes"]
CHECKED = {  # a figure on a page: the file it comes from, and what stands there
    "effects of at least 0.01 nats": ("heta_lens/metrics/interventions.py", "least: float = 0.01"),
    "differ by less than 0.01": ("tests/real/test_against_llama_cpp.py", "atol=0.01"),
    "by less than 0.06 on average": ("tests/real/test_against_llama_cpp.py", "mean() < 0.06"),
    "that are within 0.2 of each other": ("tests/real/test_against_llama_cpp.py", "margins > 0.2"),
    "the share that came directly, is 0.66": ("tests/docs/test_reasoning_page.py", "hop_shares[0]), 2) == 0.66"),
    "within 25 % of the measured peak": ("tests/methods/test_memory.py", "approx(held.most, rel=0.25)"),
}


def prose(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        cells = jupytext.reads(text, "py:percent").cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    if page.stem == "choosing":
        text = "\n".join(item for item in re.split(r"\n\n|\n(?=- )", text) if "](results.md" not in item)
    for hidden in (r"^```.*?^```", r"^    .*?$", r"<!-- .*? -->.*?<!-- .*? -->", r"`[^`]*`"):
        text = re.sub(hidden, "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\s+", " ", text)


def figures(text: str) -> list[str]:
    for known in [*DEFINED, *CHECKED]:
        text = text.replace(known, "")
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in FIGURE.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_states_no_figure_that_is_not_checked(page: Path) -> None:
    assert not figures(prose(page))


@pytest.mark.parametrize("figure", CHECKED)
def test_a_checked_figure_is_on_a_page_and_where_it_comes_from(figure: str) -> None:
    file, text = CHECKED[figure]
    assert text in (ROOT / file).read_text(encoding="utf-8")
    assert FIGURE.search(figure) and any(figure in prose(page) for page in PAGES)


@pytest.mark.parametrize(
    "text",
    [
        "They put it on the evidence in every story, and so do",
        "it is wrong about one time in eight",
        "the bias goes from 6 % to 2 %",
        "a rank correlation of .18",
        "saves a quarter of the cost",
        "left out more than half of its norm",
        "costs only a fifth of a nat",
        "five times its products",
        "in about an hour on two cores",
    ],
)
def test_a_figure_is_noticed(text: str) -> None:
    assert figures(text)


@pytest.mark.parametrize("name", [name for name in METHODS if "paper" in vars(METHODS[name])])
def test_the_years_of_a_method_are_those_of_its_papers(name: str) -> None:
    method = METHODS[name]
    years = re.findall(r"\b(?:19|20)\d\d\b(?!\.)", re.sub(r"arXiv:\S+", "", method.paper))
    summary = (method.__doc__ or "").strip()
    assert {*re.findall(r"\b20\d\d\b", summary.partition("\n")[0])} <= {*years}
