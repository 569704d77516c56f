"""Whether blocks can run alone is tried, and the reason is given where they cannot."""

from collections import Counter
from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.blocks import with_side_channel
from heta_lens._util.work import counting
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.checks import blocks_alone


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", zoo.models())
def test_blocks_of_every_kind_of_model_can(build: Any, dtype: torch.dtype) -> None:
    model = build(dtype)
    for length in (1, 9):
        with counting(Counter()) as counts:
            assert blocks_alone(ModelAdapter(model), zoo.prompt(model, length)[0]) == (True, "")
        assert counts["forwards"] == 3


@pytest.mark.parametrize("last", [False, True], ids=["told", "remembered"])
def test_a_block_that_does_something_else_is_noticed(last: bool) -> None:
    """Also if it remembers what it was told in the last run of the model."""
    model = with_side_channel(last=last)
    same, why = blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
    assert not same and why.startswith("block 1 does something else when it runs alone")


@pytest.mark.parametrize("error", [KeyError("positions"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_block_that_cannot_is_noticed_unless_memory_is_short(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    model = zoo.bridge("gpt2")
    monkeypatch.setattr(ModelAdapter, "run_block", fail)
    if isinstance(error, torch.OutOfMemoryError):
        with pytest.raises(torch.OutOfMemoryError):
            blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
    else:
        same, why = blocks_alone(ModelAdapter(model), zoo.prompt(model, 9)[0])
        assert not same and why == "block 1 cannot run alone (KeyError: 'positions')"
