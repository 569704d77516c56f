"""Run the Python blocks of a page from top to bottom, and write below each what it printed.

    python docs/printed_outputs.py README.md docs/five_minutes.md

A block ```text that follows a block ```python is what that prints. The blocks of a page share their names.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

BLOCK = re.compile(r"```python\n(.*?)```(?:(\n+```text\n)(.*?)```)?", re.DOTALL)


class Printed(NamedTuple):
    code: str
    expected: str
    """What the page says that it prints; empty if it says nothing."""
    actual: str


def blocks(page: str, names: dict[str, Any]) -> Iterator[Printed]:
    """Every block, run in its order."""
    for block in BLOCK.finditer(page):
        with redirect_stdout(StringIO()) as printed:
            exec(block[1], names)
        yield Printed(block[1], block[3] or "", printed.getvalue())


def with_outputs(page: str) -> str:
    """The page with what its blocks print now."""
    printed = iter([*blocks(page, {})])

    def written(block: re.Match[str]) -> str:
        actual = next(printed).actual
        return block[0] if block[2] is None else f"```python\n{block[1]}```{block[2]}{actual}```"

    return BLOCK.sub(written, page)


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    with TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(Path("models").resolve())
        os.chdir(folder)  # for the files that a page writes
        for page in pages:
            page.write_text(with_outputs(page.read_text(encoding="utf-8")), encoding="utf-8")
