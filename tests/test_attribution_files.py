"""Attributions that are saved and loaded, and damaged files."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.testing import assert_close

from helpers.attributions import of_chat, uncertain
from heta_lens import Attribution
from heta_lens._util import storage
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
    "target": (frozenset((7, 8)), 9),
    "target_text": (" down", " up"),
    "signed": True,
    "options": {"mask": torch.tensor([0.5, -1.0]), "layers": (0, 1), "tolerance": None, "deep": {"pair": [(1, None)]}},
    "positions": torch.tensor([0, 2, 3, 4, 5, 9]),
}


@pytest.mark.parametrize("changes", [{}, FULL, {"target": frozenset((7, 9))}], ids=["plain", "full", "set"])
def test_what_is_saved_is_loaded_exactly(tmp_path: Path, changes: dict[str, Any]):
    saved = uncertain(**changes)
    saved = replace(saved, scores=saved.scores.bfloat16())
    saved.save(tmp_path / "a.safetensors")
    loaded = Attribution.load(tmp_path / "a.safetensors")
    for field in fields(Attribution):
        assert_same(getattr(loaded, field.name), getattr(saved, field.name))
    assert repr(loaded) == repr(saved)


@pytest.mark.parametrize("made", [of_chat(), of_chat().without(template=True)], ids=["whole", "part"])
def test_messages_are_saved_too(tmp_path: Path, made: Attribution):
    made.save(tmp_path / "a.safetensors")
    loaded = Attribution.load(tmp_path / "a.safetensors")
    assert_same(vars(loaded.messages), vars(made.messages))
    assert (loaded.by_message(), repr(loaded)) == (made.by_message(), repr(made))


def test_another_safetensors_file_is_no_attribution(tmp_path: Path):
    save_file({"scores": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=rf"model.safetensors is a safetensors file, but not a {Attribution.kind}"):
        Attribution.load(tmp_path / "model.safetensors")


# ------------------------------------------------------------------------------------------------------- damaged files
def known(**facts: Any) -> dict[str, Any]:
    return {"diagnostics": facts}


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"ids": torch.ones(6)}, r"its ids is tensor\(\[1"),
    ({"scores": torch.tensor([1.0, 2, 3, math.nan, 5, 6])}, "nan at position 3"),
    (known(standard_errors={"scores": torch.ones(5)}), "its standard_errors is"),
    ({"signed": 1}, "its signed is 1, and must be true or false"),
    ({"messages": {"roles": ("user",)}}, "places"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("changes", "wrong"), DAMAGED)
def test_a_damaged_file_is_refused_by_the_field_that_is_wrong(tmp_path: Path, changes: dict[str, Any], wrong: str):
    storage.save(tmp_path / "a.safetensors", Attribution.kind, VERSION, uncertain().stored | changes)
    with pytest.raises(ValueError, match=rf"a.safetensors is a damaged {Attribution.kind} file: .*{wrong}"):
        Attribution.load(tmp_path / "a.safetensors")
