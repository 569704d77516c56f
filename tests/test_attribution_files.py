"""Attributions that are saved and loaded."""

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from helpers.attributions import SCORES, attribution, double, of_chat, uncertain
from heta_lens import Attribution
from heta_lens._util import storage
from heta_lens._util.target_kinds import SavedFunction
from heta_lens.attribution import VERSION


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert_close(found, expected, rtol=0, atol=0)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for key, item in expected.items():
            assert_same(found[key], item)
    else:
        assert (type(found), found) == (type(expected), expected)


FULL = {
    "target": (7, 9),
    "target_text": (" down", " up"),
    "signed": True,
    "options": {"mask": torch.tensor([0.5, -1.0]), "layers": (0, 1), "tolerance": None, "deep": {"pair": [(1, None)]}},
    "positions": torch.tensor([0, 2, 3, 4, 5, 9]),
}


@pytest.mark.parametrize("changes", [{}, FULL], ids=["plain", "full"])
def test_what_is_saved_is_loaded_exactly(tmp_path: Path, changes: dict[str, Any]):
    saved = uncertain(**changes)
    saved.save(tmp_path / "a.safetensors")
    loaded = Attribution.load(tmp_path / "a.safetensors")
    for field in fields(Attribution):
        assert_same(getattr(loaded, field.name), getattr(saved, field.name))


def margin(logits: Tensor) -> Tensor:
    return logits[7] - logits[9]


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, "1"),
        (FULL, "1"),
        ({"target": frozenset((7, 9))}, "2"),
        ({**FULL, "target": (frozenset((7, 9)), 3)}, "2"),
        ({"target": margin, "target_text": "margin"}, "2"),
    ],
)
def test_only_targets_that_older_versions_do_not_know_are_kept_from_them(
    tmp_path: Path, changes: dict[str, Any], version: str
):
    uncertain(**changes).save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["version"] == version
    loaded = Attribution.load(tmp_path / "a.safetensors").target
    assert loaded == (SavedFunction("margin") if changes.get("target") is margin else changes.get("target", 7))


@pytest.mark.parametrize(
    "changed", [lambda made: made, lambda made: made.without(template=True)], ids=["whole", "part"]
)
def test_messages_are_saved_too(tmp_path: Path, changed: Any):
    saved = changed(of_chat())
    saved.save(tmp_path / "a.safetensors")
    loaded = Attribution.load(tmp_path / "a.safetensors")
    assert_same(vars(loaded.messages), vars(saved.messages))
    assert (loaded.by_message(), repr(loaded)) == (saved.by_message(), repr(saved))


@pytest.mark.parametrize(("made", "version"), [(attribution(), "1"), (of_chat(), "2")])
def test_only_chats_are_kept_from_versions_that_know_no_messages(tmp_path: Path, made: Attribution, version: str):
    made.save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["version"] == version
    assert (Attribution.load(tmp_path / "a.safetensors").messages is None) == (version == "1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_keep_their_dtype_in_a_file(tmp_path: Path, dtype: torch.dtype):
    saved = replace(attribution(), scores=double(SCORES).div(3).to(dtype))
    saved.save(tmp_path / "a.safetensors")
    assert_same(Attribution.load(tmp_path / "a.safetensors").scores, saved.scores)


def test_a_loaded_attribution_outlives_its_file(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    attribution(scores=[-score for score in SCORES]).save(path)
    other = path.read_bytes()
    attribution().save(path)
    loaded = Attribution.load(path)
    with open(path, "r+b") as file:  # in place, as safetensors before 0.8 writes
        file.write(other)
    assert loaded.scores.tolist() == list(SCORES)


def test_another_safetensors_file_is_no_attribution(tmp_path: Path):
    save_file({"scores": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is a safetensors file, but not a heta_lens.attribution"):
        Attribution.load(tmp_path / "model.safetensors")


def test_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(OSError, match=r"a.safetensors is a pipe: give a regular file"):
        Attribution.load(tmp_path / "a.safetensors")


def test_a_foreign_file_is_refused_before_it_is_read(tmp_path: Path):
    path, size = tmp_path / "model.safetensors", 4 * 2**40  # no memory holds as much, and no disk: the file is sparse
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(ValueError, match=r"is a safetensors file, but not a heta_lens.attribution file"):
        Attribution.load(path)


def test_an_attribution_from_a_newer_heta_lens_is_refused(tmp_path: Path):
    storage.save(tmp_path / "a.safetensors", "heta_lens.attribution", VERSION + 1, {"scores": torch.ones(3), "new": 1})
    with pytest.raises(ValueError, match="upgrade"):
        Attribution.load(tmp_path / "a.safetensors")


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing to save a\.safetensors in"):
        attribution().save(tmp_path / "missing" / "a.safetensors")
