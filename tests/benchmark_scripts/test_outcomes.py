"""What benchmarks measured is kept, and their tables are made of that alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import outcomes, report
from benchmarks.outcomes import Outcomes
from benchmarks.report import INDEPENDENT, Table, average, proportion
from heta_lens.evaluation.statistics import estimate

pytestmark = [pytest.mark.usefixtures("unchecked")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outcomes, "FOLDER", tmp_path / "measured")
    monkeypatch.setattr(outcomes, "ARCHIVE", tmp_path / "measured.tar.xz")
    return tmp_path / "measured"


def squares(asked: list[Any]) -> Any:
    def measure(key: Any) -> dict[str, Any]:
        asked.append(key)
        if key == (3, "x"):
            raise KeyboardInterrupt
        return {"square": key[0] ** 2}

    return measure


def test_an_interrupted_run_resumes(folder: Path) -> None:
    asked: list[Any] = []
    kept, keys = Outcomes("squares", folder), [(number, "x") for number in range(5)]
    with pytest.raises(KeyboardInterrupt):
        kept.measure(keys, squares(asked))
    assert kept.of(keys) == ({(at, "x"): {"square": at**2} for at in range(3)}, 2)
    with open(kept.path, "ab") as file:
        file.write(b'{"key": [3, "x"], "outc')  # cut short
    keys.remove((3, "x"))
    kept.measure(keys, squares(asked))
    assert asked == [(0, "x"), (1, "x"), (2, "x"), (3, "x"), (4, "x")]
    assert [*kept.read()] == [(0, "x"), (1, "x"), (2, "x"), (4, "x")]


def test_the_archive_fills_in_what_was_not_measured_here(folder: Path) -> None:
    Outcomes("a", folder).add({(1,): "kept", (2,): float("nan")})
    Outcomes("b", folder).add({(1,): "kept"})
    outcomes.keep()
    first = outcomes.ARCHIVE.read_bytes()
    for path in folder.iterdir():
        path.unlink()
    Outcomes("b", folder).add({(1,): "newer"})
    assert Outcomes("a", folder).read()[1,] == "kept" and np.isnan(Outcomes("a", folder).read()[2,])
    assert Outcomes("b", folder).read() == {(1,): "newer"}
    assert Outcomes("a", folder / "other").read() == {}
    (folder / "a.jsonl").unlink()
    outcomes.keep()  # with what the archive had of a
    for path in folder.iterdir():
        path.unlink()
    assert Outcomes("a", folder).read()[1,] == "kept" and Outcomes("b", folder).read() == {(1,): "newer"}
    Outcomes("b", folder).path.write_text('{"key": [1], "outcome": "kept"}\n')
    outcomes.keep()
    assert outcomes.ARCHIVE.read_bytes() == first  # which says nothing of when and by whom


# ------------------------------------------------------------------------------------------------------------- tables
def test_intervals_are_over_clusters() -> None:
    """Forty prompts of four templates that differ: as prompts they would be ten times as many as they are."""
    values = [float(template) for template in range(4) for _ in range(10)]
    templates = [template for template in range(4) for _ in range(10)]
    told = estimate(values, templates)
    assert average(values, templates) == f"{told.value:.2f} [{told.low:.2f}, {told.high:.2f}]"
    alone = estimate(values, range(40))
    assert told.high - told.low > 2 * (alone.high - alone.low)
    hits = [value > 1 for value in values]
    assert proportion(hits, templates).startswith("50% [")
    assert proportion(hits, templates) != proportion(hits, [*range(40)])
    assert proportion([], []) == "–"
    assert average([1.0] * 40, templates, (0, 1)) == "1.00"  # of a method beside itself
    assert proportion([1.0] * 40, templates).startswith("100% [")


OLD = """Made before.

## First

| a | b |
| --- | --- |
| x | 1.00 [0.50, 1.50] |

## Second

| a | s |
| --- | --- |
| x | 3 (2–4) |
"""


def test_only_what_is_measured_is_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(OLD)
    tables = [
        Table("First", ["a", "b"], [["x", "9.00 [8.00, 9.50]"]], missing=3),
        Table("Second", ["a", "s"], [], missing=1),
        Table("Third", ["a"], [["y"]], note="95 % intervals over 2 prompts."),
        Table("Fourth", ["a"], [], missing=7),
    ]
    report.write(page, "Made now.", tables)
    told = " ".join(capsys.readouterr().out.split())
    assert "'First' stays as it was, 3 of its outcomes are missing" in told and "'Third'" not in told
    first, second = OLD.split("## ")[1:]
    heading, table = first.rstrip().split("\n\n")
    assert page.read_text() == "\n\n".join(
        [
            *("Made now.", f"## {heading}", INDEPENDENT, table),
            *(f"## {second.rstrip()}", "## Third", "95 % intervals over 2 prompts.", "| a |\n| --- |\n| y |"),
            *("## Fourth", "Not measured yet."),
        ]
    ) + "\n"  # fmt: skip
    again = page.read_text()
    report.write(page, "Made now.", tables)
    assert page.read_text() == again
    report.write(page, "Made now.", [tables[0], Table("Second", ["a", "s"], [["x", "4"]])])
    assert "| x | 4 |" in page.read_text() and "3 (2–4)" not in page.read_text()
