"""Numbers in tables and in prose are those that the stored outcomes give."""

import re
from collections.abc import Iterator

import pandas as pd
import pytest

from benchmarks import pages, study_page
from benchmarks.pages import ROOT

README, CHOOSING = ROOT / "README.md", ROOT / "docs" / "choosing.md"
NO_RESULT = (  # names, what the protocol fixes, and lengths
    *("SmolLM2-135M-Instruct", "Gemma-3-270M", "SmolLM2", "Q4_1", "Q4_K_M", "float32", "log p", "Eq. 4", ".05"),
    *(
        "0 is a random order",
        "1 is the evidence on top",
        "36 right answers",
        "24 on Gemma",
        "25 to 32 hours",
        "80 % of",
    ),
    *("135 and 270 million", "from 4 bits", "at most 80 tokens", "160 in some", "≤ 160 tokens", "at most 160 tokens"),
    *("500 tokens", "256 to 1,000 tokens"),
)


def paragraphs(text: str, link: str = "") -> Iterator[str]:
    """Yield the prose with a link, without tables, headings, pictures, code and addresses, each part on one line."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=- )", text):
        if not part.startswith(("|", "#", "<picture>")) and link in part:
            yield " ".join(re.sub(r"\]\([^)]*\)", "]", part).split())


def unexplained(paragraph: str, known: tuple[str, ...]) -> list[str]:
    """Return the numbers of a paragraph that no phrase accounts for."""
    for phrase in sorted((*known, *NO_RESULT), key=len, reverse=True):
        paragraph = re.sub(rf"(?<![\d.,+−-]){re.escape(phrase)}(?!\d)", "", paragraph)
    return re.findall(r"[-+−]?\d*[.,]?\d+", paragraph)


@pytest.mark.slow
def test_every_cell_is_computed_from_the_stored_outcomes() -> None:
    for page, tables in study_page.tables().items():
        text = pages.PAGES[page].read_text(encoding="utf-8")
        for table in tables:
            assert f"\n## {table.title}\n\n{table.text}\n" in text, table.title


@pytest.mark.slow
def test_every_number_in_prose_is_computed_from_the_stored_outcomes() -> None:
    results_page = pages.PAGES["results"].read_text(encoding="utf-8")
    for table in study_page.tables()["results"]:
        results_page = results_page.replace(table.text, "")
    linked = [page.read_text(encoding="utf-8") for page in (README, CHOOSING)]
    study = [*paragraphs(results_page), *(one for text in linked for one in paragraphs(text, "results.md"))]
    assert {one: found for one in study if (found := unexplained(one, study_page.phrases()))} == {}


@pytest.mark.slow
def test_the_times_of_the_readme_are_those_of_the_study() -> None:
    timed = re.findall(r'^\|.*method="(\w+)".*\| ([\d.]+ s) \|$', README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in timed] == ["careful", "leave_one_out", "attn_lrp", "peering"]
    assert {f"`{name}` {seconds} on SmolLM2" for name, seconds in timed} <= {*study_page.phrases()}


def test_the_recall_of_components_is_that_of_the_table() -> None:
    recall = pd.read_csv(pages.CSV / "components-recall.csv").set_index(["model", "change", "direction"])
    ten, most = recall["first 10, 1 step"], recall["first 32, 1 step"]
    prose = " ".join((ROOT / "docs" / "components.md").read_text(encoding="utf-8").split())
    ends = [f"{value:.2f}".lstrip("0") for value in (ten.min(), ten.max(), most.min(), most.max())]
    assert "hold {} to {} of the ten largest effects, and the 32 that are patched {} to {};".format(*ends) in prose
    by_direction = ten.unstack("direction")
    assert (by_direction["restore"] > by_direction["knock_out"]).all()  # "restoring misses fewer than knocking out"
    page = " ".join(pages.PAGES["components"].read_text(encoding="utf-8").split())
    named = [("demo", "first 32"), ("SmolLM2-135M-Instruct", "first 10")]
    for model, first in named:
        one, five = (
            recall.loc[(model, "counterfactual", "knock_out"), f"{first}, {steps}"] for steps in ("1 step", "5 steps")
        )
        assert f"(.{one * 100:.0f} to .{five * 100:.0f} of the {first})" in page
    others = [
        abs(row[f"{first}, 5 steps"] - row[f"{first}, 1 step"])
        for (model, *way), row in recall.iterrows()
        for first in ("first 10", "first 32")
        if ((model, first) not in named or way != ["counterfactual", "knock_out"])
    ]
    assert f"{max(others):.2f}" == "0.06" and "All other differences are at most .06." in page
