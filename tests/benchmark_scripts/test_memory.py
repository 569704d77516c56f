"""The page of memory is written from what processes of their own measured."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from benchmarks import memory


@pytest.mark.thorough
def test_every_way_is_measured_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=400,
        dtype="bfloat16",
    )
    page = tmp_path / "MEMORY.md"
    monkeypatch.setattr(memory, "CONFIG", tiny)
    monkeypatch.setattr(memory, "PAGE", page)
    memory.main()
    rows = [
        line.strip("| ").split(" | ") for line in page.read_text(encoding="utf-8").splitlines()[-len(memory.WAYS) :]
    ]
    assert [row[0].strip("`") for row in rows] == list(memory.WAYS)
    assert all(0.01 <= float(row[3]) < 2 for row in rows)  # GiB: nearly all of it is what is read on the way
    assert rows[-1][2] == rows[-1][4] == "–"  # nothing is predicted for a cache of everything


@pytest.mark.slow
def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    predicted, measured, ratio = map(float, memory.compared(4 * memory.GIB, lean=True))
    assert measured == 4 and ratio == pytest.approx(predicted / 4, abs=0.01) and 1 < predicted < 4
    assert memory.compared(memory.GIB, lean=False) == ["–", "1.00", "–"]
