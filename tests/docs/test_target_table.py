"""The page of methods says which targets each of them takes, as the code does; and its example functions run."""

import re

import pytest

from helpers import ROOT
from heta_lens import METHODS
from heta_lens._util.target_kinds import KINDS

PAGE = (ROOT / "docs" / "methods.md").read_text()
TABLE = re.search(r"## Which targets\n.*?(\| method .*?)\n\n", PAGE, re.DOTALL)
assert TABLE is not None
HEAD, _, *ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE[1].splitlines()]


def test_the_table_has_every_method_and_every_kind_of_target() -> None:
    assert HEAD[1:-1] == [*KINDS]
    assert [row[0] for row in ROWS] == [f"`{method}`" for method in METHODS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_what_the_method_takes(row: list[str]) -> None:
    method = METHODS[row[0].strip("`")]()
    assert row[1:-1] == ["yes" if kind in method.takes else "no" for kind in KINDS]
    assert ("target-agnostic" in row[-1]) == method.ignores_target
    assert ("takes gradients" in row[-1]) == (method.differentiates or method.name == "heta")
