"""Prompts for real models, and the table that the recommendations rest on."""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks import real_prompts


def test_the_answer_and_the_evidence_stand_in_every_prompt() -> None:
    some = [*islice(real_prompts.prompts(), 40)]
    assert len({prompt.family for prompt in some}) == 4 and len({prompt.text for prompt in some}) == 40
    for prompt in some:
        assert prompt.answer.strip() in prompt.text and prompt.answer.startswith(" ")
        assert any(prompt.answer.strip() in passage for passage in prompt.evidence)
        assert all(passage in prompt.text for passage in prompt.evidence)


def test_the_page_is_written_from_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = real_prompts.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(real_prompts, "PAGE", tmp_path / "REAL.md")
    real_prompts.write_page()
    assert (tmp_path / "REAL.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("name", real_prompts.MODELS)
def test_what_is_recommended_is_near_the_best_on_real_models(name: str) -> None:
    """`careful` on evidence and on interventions, `fast` on evidence."""
    outcomes = real_prompts.OUTCOMES.read()
    rows = [outcome for key, outcome in outcomes.items() if key[0] == name and len(key) == 2]
    table = {
        row[0].strip("`"): [float(cell.split()[0].strip("%")) for cell in row[1:]] for row in real_prompts.table(rows)
    }
    for method, columns in {"careful": range(5), "fast": range(2)}.items():
        for column in columns:
            best = max(row[column] for setting, row in table.items() if setting != "leave_one_out mask=zero")
            assert table[method][column] >= 0.8 * best, (method, column)
