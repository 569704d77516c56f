"""Prompt sets that cannot be read."""

import csv
from io import StringIO
from pathlib import Path

import pytest

from heta_lens.evaluation.reproduce import reproduce


@pytest.mark.usefixtures("small")
def test_data_that_cannot_be_read_is_said_in_every_cell(tmp_path: Path) -> None:
    _, sheet = reproduce("extended_faithfulness", model="gpt2", out=tmp_path, progress=False)
    lines = [*csv.DictReader(StringIO(sheet.read_text(encoding="utf-8")))]
    assert lines and all("LongRA could not be read" in line["note"] and not line["ours"] for line in lines)
