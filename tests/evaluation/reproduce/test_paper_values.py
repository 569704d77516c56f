"""The printed values are those of the paper."""

import re

import pytest

from helpers import paths
from heta_lens.evaluation.reproduce import TABLES
from heta_lens.evaluation.reproduce.cells import Place, printed

PAPER = paths.SHARED / "paper" / "heta.tex"
needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not here")


def tabulars() -> dict[str, str]:
    """Every table of the paper that has cells, by its label."""
    found = {}
    for kind in ("table", "wraptable"):
        for body in re.findall(rf"\\begin{{{kind}\*?}}.*?\\end{{{kind}\*?}}", PAPER.read_text(encoding="utf-8"), re.S):
            (label,) = re.findall(r"\\label\{([^}]*)\}", body)
            found[label] = re.search(r"\\begin\{tabular.*?\\end\{tabular", body, re.S)[0]
    return found


def numbers(body: str) -> list[str]:
    """The figures of its cells, in their order."""
    cells = re.sub(r"\{,\}|\\(text|under)(bf|line)|[{}$]", "", body)
    rows = [row.split("&")[1:] for row in cells.split(r"\\") if "uparrow" not in row and "cmidrule" not in row]
    return re.findall(r"(?<![\w.-])[-+]?\d+(?:\.\d+)?", " ; ".join(cell for row in rows for cell in row))


def copied(name: str) -> list[str]:
    table = printed()[name]
    found = [figure for _, figure in table.figures()]
    if table.across:  # its blocks are columns
        found = [block.rows[row][0] for row in table.rows for block in table.blocks]
    rows = [number for one in found for number in re.findall(r"[-+]?\d+(?:\.\d+)?", one)]
    if name == "beta_gamma":  # whose first column is in the rows' names
        gammas = [row.rpartition(" ")[2] for row in table.rows]
        rows = [one for at, gamma in enumerate(gammas) for one in (gamma, *rows[4 * at : 4 * at + 4])]
    return rows


@needs_paper
def test_every_table_of_the_paper_is_there() -> None:
    labels = [label for table in printed().values() for label in table.labels]
    assert sorted(labels) == sorted(tabulars())
    assert {*TABLES} == {*printed()}


@needs_paper
@pytest.mark.parametrize("name", printed())
def test_figures_are_those_of_the_paper(name: str) -> None:
    assert copied(name) == numbers(tabulars()[printed()[name].labels[0]])


@needs_paper
def test_the_short_table_of_decoding_is_part_of_the_long_one() -> None:
    _, short = printed()["decoding"].labels
    (llama,) = (block for block in printed()["decoding"].blocks if "Llama" in block.model)
    assert [one for row in llama.rows.values() for one in row] == [
        one for one in numbers(tabulars()[short]) if one not in ("3",)
    ]


def test_what_cannot_be_is_printed_and_has_a_reason() -> None:
    for table in printed().values():
        places = dict(table.figures())
        for place, reasons in table.impossible.items():
            assert place in places, place
            assert reasons and all(len(reason) > 20 for reason in reasons)
    alike = [Place("GPT-J 6B", row, "Soft-NC") for row in ("No Transition Gating", "Uniform Transition")]
    assert all(any("equal" in one for one in printed()["components"].impossible[place]) for place in alike)
    dsa = dict(printed()["dsa"].figures())
    assert {place for place in dsa if abs(float(dsa[place])) > 1} == {*printed()["dsa"].impossible}
