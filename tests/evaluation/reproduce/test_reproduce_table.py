"""Every table of the paper is reproduced, and resumed."""

import csv
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from heta_lens.evaluation.reproduce import TABLES, reproduce
from heta_lens.evaluation.reproduce.cells import printed


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked", "small")
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_has_a_figure_or_says_why_not(name: str, out: Path) -> None:
    page, sheet = (path.read_text(encoding="utf-8") for path in reproduce(name, quick=True, out=out, progress=False))
    table, lines = printed()[name], [*csv.DictReader(StringIO(sheet))]
    assert "nan" not in page.lower() and "nan" not in sheet.lower()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    assert all(cell for row in cells for cell in row)
    ours = [line for line in lines if line["n"] != "0"]
    for line in lines:
        if line["ours"]:
            assert float(line["ours"]) == pytest.approx(float(line["ours"])) and int(line["n"]) > 0
            assert (line["low"] and line["high"]) or "without an interval" in line["note"]
        else:
            assert line["note"] and line["n"] == "0", line
        assert line["paper"] or "not in the paper" in line["note"]
        shown = line["paper"].replace("*", r"\*")
        assert shown in page and line["row"] in page
    rows, columns = (len({line[what] for line in lines}) for what in ("row", "column"))
    assert (rows, columns) == (len(table.rows), len(table.columns))
    assert len(ours) >= (rows * columns) * 0.5, "most of one block can be filled"
    assert page.count(r"\*") == 0 or table.impossible
    for reasons in table.impossible.values():
        assert all(reason.split(",")[0] in page for reason in reasons)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "mian", "quick": True}, "did you mean 'main'"),
        ({"table": "main"}, "give model="),
        ({"table": "main", "quick": True, "model": "gpt2"}, "give one of them"),
        ({"table": "main", "quick": True, "paths": {"longra": "x"}}, "leave out paths"),
        ({"table": "main", "model": "gpt2", "paths": {"lonra": "x"}}, "did you mean 'longra'"),
        ({"table": "main", "quick": True, "limit": 0}, "at least 1"),
        ({"table": "main", "quick": True, "options": {"beta": 1.0}}, "rows of tables"),
    ],
)
def test_what_cannot_be_made_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        reproduce(**given, out=tmp_path)
    assert not [*tmp_path.iterdir()]
