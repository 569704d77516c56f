"""Runs that continue kept keys and values equal full runs; the layout differs between kinds of models."""

from typing import Any

import pytest
import torch

from helpers import zoo
from heta_lens.model.adapter import ModelAdapter


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_a_run_that_continues_equals_a_full_run(build: Any) -> None:
    adapter = ModelAdapter(build())
    ids = zoo.prompt(adapter.model, 6)
    kept = adapter.keys_values(ids)
    past = adapter.resume(kept, 4, 6, 2)
    continued = adapter.run(ids[:, 4:].expand(2, -1), past=past)
    torch.testing.assert_close(continued, adapter.run(ids).expand(2, -1, -1))
    grown = adapter.reuse.grown(past)
    joined = adapter.reuse.joined(
        [(k[:1], v[:1]) for k, v in adapter.reuse.grown(adapter.resume(kept, 4, 4, 1))], kept, 6
    )
    for (keys, values), (joined_keys, joined_values), (kept_keys, kept_values) in zip(grown, joined, kept, strict=True):
        torch.testing.assert_close(keys[:1], kept_keys)
        torch.testing.assert_close(values[:1], kept_values)
        assert torch.equal(joined_keys, kept_keys)
        assert torch.equal(joined_values, kept_values)
