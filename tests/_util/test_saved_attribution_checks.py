"""Which files hold an attribution, and which fields are refused."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.attributions import TOKENS, uncertain
from heta_lens import Attribution
from heta_lens._util import storage
from heta_lens.attribution import FORMAT, VERSION


def saved_fields(path: Path, **changes: Any) -> Path:
    """A file with an attribution's fields, of which some are changed."""
    made = uncertain()
    storage.save(path, FORMAT, VERSION, {entry.name: getattr(made, entry.name) for entry in fields(made)} | changes)
    return path


def of_messages(**changes: Any) -> dict[str, Any]:
    """One message of a chat, in which something is changed."""
    places, owners = torch.tensor([[0, 0, 5]]), torch.tensor([0, -1, 0, 0, 0, 0])
    return {"messages": {"roles": ("user",), "places": places, "owners": owners, **changes}}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (*TOKENS, "more")}, r"its ids has shape \(6,\) and torch.int64, and must have shape \(7,\)"),
        ({"tokens": ()}, "it has no tokens"),
        ({"tokens": [*TOKENS]}, "its tokens is .* and must be a list of text"),
        ({"tokens": (*TOKENS[:5], 5)}, "its tokens is"),
        ({"tokens": (*TOKENS[:5], "\ud83d")}, r"its tokens\[5\] is not valid UTF-8 at character 0"),
        ({"ids": None}, "its ids is None, and must be a tensor"),
        ({"ids": torch.ones(6)}, "its ids has shape .* torch.float32"),
        ({"scores": torch.ones(6, dtype=torch.int64)}, "its scores has shape .* torch.int64"),
        ({"scores": torch.tensor([1.0, 2, 3, math.nan, 5, 6])}, r"its scores at \[3\] is nan, and must be finite"),
        ({"parts": {"gate": torch.ones(5)}}, r"its parts\['gate'\] has shape \(5,\)"),
        ({"parts": {"gate": 1.0}}, "its parts is"),
        ({"offsets": torch.zeros(6, 3, dtype=torch.int64)}, r"its offsets has shape \(6, 3\)"),
        (
            {"offsets": torch.full((6, 2), 99)},
            r"its offsets\[0\] are \(99, 99\), which is not a place in its text",
        ),
        ({"positions": torch.zeros(6, dtype=torch.int64)}, "its positions are .* ascending order"),
        ({"interactions": torch.ones(6)}, r"its interactions has shape \(6,\)"),
        ({"target": (7, 9)}, "its target_text is ' down', which does not fit the target"),
        ({"target": -1}, "its target is below 0"),
        ({"target": "down"}, "its target is 'down', and must be a whole number"),
        ({"target": frozenset((7,))}, "its target is .*: a set has at least 2 tokens"),
        ({"target": frozenset()}, "its target is .*: a set has at least 2 tokens"),
        ({"target": frozenset((7, -9))}, "its target is below 0"),
        ({"target": (frozenset((7, 9)), 9), "target_text": ("", "")}, "its target is .* a contrast none of them twice"),
        ({"target": (7, 7), "target_text": ("", "")}, "its target is .* a contrast none of them twice"),
        ({"target": (frozenset((7, 9)), 3)}, "its target_text is ' down', which does not fit the target"),
        ({"target": {"function": 5}}, "its target is"),
        ({"target": {"name": "margin"}}, "its target is .*, which names no function"),
        (
            {"target": {"function": "f"}, "diagnostics": {"target_rank": 1, "target_log_prob": -1.0}},
            "which a function as the target has not",
        ),
        ({"target": {}}, "its target is .*, which names no function"),
        ({"diagnostics": {"target_value": "much"}}, "its target_value is 'much', and must be a number"),
        ({"diagnostics": {"target_members": [{"id": 3}]}}, "its target_members hold .*, without text, id"),
        ({"signed": 1}, "its signed is 1, and must be true or false"),
        ({"diagnostics": {"sink_mass": "much"}}, "its sink_mass is 'much', and must be a number"),
        ({"diagnostics": {"target_rank": 1}}, "only one of target_log_prob and target_rank"),
        ({"diagnostics": {"target_rank": 1, "target_log_prob": 1000.0}}, "its target_log_prob is 1000.0"),
        ({"diagnostics": {"standard_errors": {"scores": torch.ones(6)}}}, "standard_errors but no probes"),
        ({"diagnostics": {"standard_errors": {"scores": torch.ones(5)}}}, r"standard_errors\['scores'\] has shape"),
        ({"diagnostics": {"balanced": torch.ones(5)}}, r"its balanced is or has shape \(5,\)"),
        ({"weather": "fine"}, "it has an unknown field 'weather'"),
        ({"messages": 5}, "its messages is 5, and must be an object of text or null"),
        ({"messages": {"roles": ("user",)}}, r"its messages have \['roles'\], and must have roles, places, owners"),
        (of_messages(roles=("user", 5)), "its messages have the roles .* and must have a list of text"),
        (of_messages(roles=("\ud83d",)), "a role of its messages is not valid UTF-8 at character 0"),
        (of_messages(roles=()), r"its messages' owners are \[0, -1, 0, 0, 0, 0\], and must be -1 or one of 0 messages"),
        (of_messages(owners=torch.zeros(5, dtype=torch.int64)), r"its messages' owners has shape \(5,\)"),
        (
            of_messages(owners=torch.full((6,), -2)),
            r"its messages' owners are \[-2, .* must be -1 or one of 1 messages",
        ),
        (of_messages(owners=None), "its messages' owners is None, and must be a tensor"),
        (of_messages(places=torch.zeros(2, 2, dtype=torch.int64)), r"its messages' places has shape \(2, 2\)"),
        (of_messages(places=torch.tensor(3)), r"its messages' places has shape \(\)"),
        (of_messages(places=torch.ones(2, 3)), "its messages' places has shape .* torch.float32"),
        (
            of_messages(places=torch.tensor([[0, 0, 99]])),
            r"its messages' places are \[\[0, 0, 99\]\], and must be of 1",
        ),
        (of_messages(places=torch.tensor([[1, 0, 2]])), r"its messages' places are \[\[1, 0, 2\]\], and must be of 1"),
        (of_messages(places=torch.tensor([[0, 2, 1]])), r"its messages' places are \[\[0, 2, 1\]\]"),
        ({"diagnostics": {"template_mass": "much"}}, "its template_mass is 'much', and must be a number"),
    ],
)
def test_a_file_that_is_no_attribution_is_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    path = saved_fields(tmp_path / "a.safetensors", **changes)
    with pytest.raises(ValueError, match=rf"a.safetensors is a damaged {FORMAT} file: .*{message}"):
        Attribution.load(path)


def test_a_file_with_messages_is_loaded(tmp_path: Path):
    loaded = Attribution.load(saved_fields(tmp_path / "a.safetensors", **of_messages()))
    assert [message.text for message in loaded.by_message()] == ["<bos>", ""]
    none = of_messages(roles=(), places=torch.zeros(0, 3, dtype=torch.int64), owners=torch.full((6,), -1))
    assert len(Attribution.load(saved_fields(tmp_path / "a.safetensors", **none)).by_message()) == 1


def test_a_file_that_is_one_is_loaded(tmp_path: Path):
    assert repr(Attribution.load(saved_fields(tmp_path / "a.safetensors"))) == repr(uncertain())
