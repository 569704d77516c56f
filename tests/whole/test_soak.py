"""Thousands of attributions take no more memory than hundreds, and leave no hook, file or thread behind."""

import gc
import os
from itertools import cycle, islice
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import heta_lens
from helpers.evaluating import demo
from heta_lens.data import recall

METHODS: tuple[dict[str, Any], ...] = (
    {"method": "heta", "probes": 2},
    {"method": "heta", "variant": "win", "probes": 2, "window": 16},
    {"method": "leave_one_out"},
    {"method": "lime", "samples": 40},
    {"method": "integrated_gradients", "steps": 4},
    {"method": "attn_lrp"},
    {"method": "attention_rollout"},
    {"method": "value_zeroing"},
    {"method": "causal_tracing", "samples": 1, "layers": 2},
)
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"


def hooks_of(model: nn.Module) -> int:
    """How many hooks there are, of torch and of TransformerLens."""
    torchs = sum(len(getattr(module, kind)) for module in model.modules() for kind in HOOKS)
    own = [getattr(module, kind, []) for module in model.modules() for kind in ("fwd_hooks", "bwd_hooks")]
    return torchs + sum(map(len, own))


def resources(model: nn.Module) -> tuple[int, int, int]:
    """Hooks, open files and threads."""
    process = psutil.Process()
    files = len(process.open_files()) if not hasattr(process, "num_fds") else process.num_fds()
    return hooks_of(model), files, process.num_threads()


def attribute(model: Any, count: int, offset: int) -> None:
    stories = recall.stories("test", seed=offset, facts=2)
    for story, options in zip(islice(stories, count), cycle(METHODS), strict=False):
        tokens = model.to_tokens(story.text)
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
        attribution = heta_lens.attribute(cache, story.answer, tokens=tokens, progress=False, **options)
        assert torch.isfinite(attribution.scores).all()


def memory() -> int:
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "many"),
    [pytest.param(90, 180, marks=pytest.mark.thorough), pytest.param(500, 5000, marks=pytest.mark.nightly)],
)
def test_thousands_of_attributions_leave_nothing_behind(few: int, many: int) -> None:
    model = demo()
    attribute(model, few, 0)
    before, after_few = resources(model), memory()
    attribute(model, many - few, 1)
    assert resources(model) == before
    assert memory() < 1.1 * after_few
