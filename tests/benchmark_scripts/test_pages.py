"""Tables come from CSV files, and an interrupted measurement resumes."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table


@pytest.mark.parametrize("name", pages.PAGES)
def test_every_number_of_a_page_is_in_a_csv_file(name: str) -> None:
    assert pages.from_csv(name) == pages.PAGES[name].read_text(encoding="utf-8")


def test_every_csv_file_is_of_a_table() -> None:
    texts = {name: page.read_text(encoding="utf-8") for name, page in pages.PAGES.items()}
    shown = {table.file for name, text in texts.items() for table in pages.placed(name, text)}
    assert {path.name for path in pages.CSV.glob("*.csv")} == shown


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "CSV", tmp_path / "tables")
    monkeypatch.setattr(pages, "PAGES", {"page": tmp_path / "page.md"})
    (tmp_path / "page.md").write_text(
        "# Page\n\nWritten by hand.\n\n## First\n\nold\n\n## Second\n\n| a |\n| --- |\n| x |\n"
    )
    return tmp_path / "page.md"


def test_a_table_is_written_below_its_heading_and_into_a_csv_file(page: Path) -> None:
    first = Table("First", ["a", "b|c"], [["x", "1.00 [0.50, 1.50]"], ["y", "2.00"]], note="Two rows.")
    pages.write("page", [first, Table("Second", ["a"], [["z"]], missing=3), Table("Third", ["a"], [["w"]])])
    text = page.read_text()
    assert text.startswith("# Page\n\nWritten by hand.\n\n## First\n\nTwo rows.\n\n| a | b\\|c |\n")
    assert "old" not in text and "| x |\n\n## Third" in text and text.endswith("| w |\n")
    file = page.parent / "tables" / "page-first.csv"
    assert file.read_text() == 'a,b|c,"b|c, low","b|c, high"\nx,1.00,0.50,1.50\ny,2.00,,\n'
    file.write_text(file.read_text().replace("0.50", "0.75"))
    assert "1.00 [0.75, 1.50]" in pages.from_csv("page")


def test_an_interrupted_measurement_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(number: int, letter: str) -> dict[str, int]:
        asked.append((number, letter))
        if number == 3:
            raise KeyboardInterrupt
        return {"square": number**2}

    kept, keys = Outcomes("squares", tmp_path / "measured"), [(number, "x") for number in range(5)]
    with pytest.raises(KeyboardInterrupt):
        kept.measure(keys, measured)
    assert kept.of(keys) == ({(at, "x"): {"square": at**2} for at in range(3)}, 2)
    with open(kept.path, "ab") as file:
        file.write(b'{"key": [3, "x"], "outc')  # cut short
    keys.remove((3, "x"))
    kept.measure(keys, measured)
    assert asked == [(0, "x"), (1, "x"), (2, "x"), (3, "x"), (4, "x")]
    assert [*kept.read()] == [(0, "x"), (1, "x"), (2, "x"), (4, "x")]
    monkeypatch.setattr("benchmarks.outcomes.KEPT", tmp_path)
    kept.pack()
    kept.path.unlink()  # as on another machine
    assert kept.stored() == kept.read() and kept.of([(4, "x")]) == ({(4, "x"): {"square": 16}}, 0)
    assert not kept.path.exists() and [*kept.measure([(5, "x")], measured)] == [(5, "x")]
    assert [*kept.read()] == [(0, "x"), (1, "x"), (2, "x"), (4, "x"), (5, "x")]
