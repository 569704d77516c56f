"""A model in the middle of somebody's work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.odd_models import OWN_KINDS, N, noted


@pytest.fixture(params=["bare", "hooked"])
def used(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Any, Any, Tensor]]:
    """A model in the middle of somebody's work, its cache and its tokens."""

    def make(kind: str) -> tuple[Any, Any, Tensor]:
        model = OWN_KINDS[kind]()
        for k, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(k % 3 != 0)
            if k % 2:
                parameter.grad = torch.full_like(parameter, 0.25)
        monkeypatch.setattr(model.tokenizer, "padding_side", "left" if kind == "gpt2" else "right")
        if request.param == "hooked":
            seen: list[Any] = []
            model.add_hook("blocks.0.hook_resid_post", noted(seen))
            model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
            model.add_hook("blocks.1.hook_resid_pre", noted(seen), is_permanent=True)
            model.add_hook("hook_embed", lambda activation, hook: activation * 1.1)  # noqa: ARG005
            model.add_hook("unembed.hook_in", noted(seen))
            model.add_hook("blocks.1.attn.hook_pattern", noted(seen), dir="bwd")
            model.blocks[0].ln1.register_forward_hook(lambda module, args, output: output * 1.1)  # noqa: ARG005
            model.blocks[1].ln1.register_forward_pre_hook(lambda module, args: None)  # noqa: ARG005
            model.blocks[0].register_full_backward_hook(lambda module, before, after: None)  # noqa: ARG005
        ids = zoo.prompt(model, N)
        _, cache = model.run_with_cache(ids)
        return model, cache, ids

    return make
