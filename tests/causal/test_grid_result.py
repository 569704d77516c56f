"""A grid of patches: what it says, and as a table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import explain
from helpers.patching import TARGET, patched, prompts
from heta_lens.causal import Grid

ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


@ONE_EACH
def test_a_grid_says_what_it_is(build: Callable[..., Any]) -> None:
    model = build()
    clean, corrupted = prompts(model)
    likely = int(model(clean)[0, -1].argmax())
    assert likely != int(model(corrupted)[0, -1].argmax())
    found, asked = patched(model, None), explain(model, clean, likely, method="recency")
    assert found.title == f"patching resid_pre: {asked.target_text!r}"
    assert torch.equal(found.values, patched(model, likely).values)
    assert torch.equal(found.values, patched(model, asked.target_text).values)
    assert found.labels == explain(model, corrupted, likely, method="recency").tokens
    assert found.labels != asked.tokens
    heads = patched(model, (TARGET, likely), what="head_v")
    assert heads.labels == ("head 0", "head 1", "head 2", "head 3")
    assert heads.title.startswith("patching head_v: '") and heads.title.endswith(f" rather than {asked.target_text!r}")
    assert not heads.values.requires_grad


def test_a_grid_reads_as_a_table() -> None:
    grid = Grid("patching", torch.tensor([[1.0, 4.0], [3.0, 2.0]]), ("a", "<b>"), clean=5.0, corrupted=1.0, forwards=6)
    assert [(one.layer, one.column, one.label, one.restored) for one in grid.top(2)] == [
        (0, 1, "<b>", 0.75),
        (1, 0, "a", 0.5),
    ]
    assert [*grid.to_frame()["restored"]] == [0.0, 0.75, 0.5, 0.25]
    assert "0 is 1, 1 is 5; most restored by layer 0 '<b>' 0.75" in repr(grid)
    page = grid.plot().fragment
    assert "&lt;b&gt;" in page and "<b>" not in page and page.index("layer 0") < page.index("layer 1")
    same = Grid("patching", torch.ones(1, 2), ("a", "b"), clean=1.0, corrupted=1.0, forwards=2)
    assert repr(same) == "patching: nothing was lost, 1 in both runs"
    assert bool(same.restored.isnan().all()) and [*same.to_frame()["value"]] == [1.0, 1.0]
    with pytest.raises(ValueError, match="nothing was lost"):
        same.plot()
    other = Grid("patching", torch.tensor([[1.0, 2.0]]), ("a", "b"), clean=1.0, corrupted=1.0, forwards=2)
    assert [one.label for one in other.top()] == ["b", "a"]
    with pytest.raises(ValueError, match="k=-1 must be at least 1"):
        grid.top(-1)
    some = Grid(
        "patching", torch.eye(2), ("a", "a"), clean=1.0, corrupted=0.0, forwards=6, layers=(1, 3), columns=(5, 2)
    )
    assert [one[:3] for one in some.top(2)] == [(1, 5, "a"), (3, 2, "a")]
    assert "layer 1 'a' at 5 1.00, layer 3 'a' at 2 1.00" in repr(some)
    assert "<th class=number>5</th>" in some.plot().fragment
    assert "<th class=number>" not in replace(some, of_heads=True).plot().fragment
