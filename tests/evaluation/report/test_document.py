"""Documents: texts cannot break them, and cells are no formulas."""

import csv
from io import StringIO
from xml.etree import ElementTree

import pandas as pd

from helpers.report_folder import texts
from heta_lens.evaluation.report.document import Heading, Notes, Paragraph, Table, markdown, page, sheet


def test_texts_cannot_break_a_document() -> None:
    nasty = "a | b <script> *c* `d` _e_ f_g\n[h](i) & \\"
    blocks = [Heading(nasty), Paragraph(nasty), Notes([nasty]), Table([nasty], [[nasty]], bold=frozenset({(0, 0)}))]
    root = ElementTree.fromstring(page(nasty, blocks))
    assert texts(root).count("<script>") == 6
    text = markdown(blocks)
    assert len(text.splitlines()) == 9
    assert r"a \| b \<script> \*c\* \`d\` \_e\_ f_g [h]\(i) & \\" in text


TEXTS = [
    "=HYPERLINK(1)",
    "+1+1",
    "-1 ± 2",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "＝1",
    "'=1",
    "''=1",
    "'a",
    "a=1",
    "",
    "-",
    "it's",
]


def read_back(cell: str) -> str:
    """As the documentation says."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(tuple("=+-@\t\r\n＝＋－＠")) else cell


def test_no_text_becomes_a_formula_and_every_text_can_be_read_back() -> None:
    found = [row["text"] for row in csv.DictReader(StringIO(sheet(pd.DataFrame({"text": [*TEXTS, "x"]})), newline=""))]
    found = [*found[: TEXTS.index("")], "", *found[TEXTS.index("") :]] if len(found) == len(TEXTS) else found
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r", "＝")) for cell in found)
    assert [read_back(cell) for cell in found] == [*TEXTS, "x"]


def test_numbers_stay_numbers_in_a_table() -> None:
    assert sheet(pd.DataFrame({"a": ["-0.5", -1, "+2e-3", "-inf"]}, dtype=object)) == "a\n-0.5\n-1\n+2e-3\n-inf\n"


def test_a_report_shows_what_would_steer_a_terminal() -> None:
    blocks = [Heading("\x1b[2Ja"), Paragraph("\u202eb"), Table(["x"], [["\x9bc"]])]
    for told in (markdown(blocks), page("\x1bt", blocks)):
        assert not set(told) & set("\x1b\u202e\x9b") and "␛[2Ja" in told
