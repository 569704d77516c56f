"""Every row of the table of faults names a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<fault>[^|]+) \| (?P<outcome>[^|]+) \| `(?P<file>[^`:]+)::(?P<test>\w+)` \|$")


def test_every_fault_has_a_test() -> None:
    section = (ROOT / "docs" / "workers.md").read_text().partition("## Faults")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    assert len(table) > 20
    for line in table[2:]:
        row = ROW.match(line)
        assert row, line
        source = ast.parse((ROOT / row["file"]).read_text())
        assert row["test"] in {node.name for node in ast.walk(source) if isinstance(node, ast.FunctionDef)}, row["test"]
