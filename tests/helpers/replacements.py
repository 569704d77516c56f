"""Plain logits, and predictions under hooks of somebody else."""

from typing import Any

import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict

N, TARGET = 8, 7


def plain_logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids)[0].double()


def hooked_up(model: Any) -> Any:
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
    return model


def on_bridge() -> Any:
    model = zoo.bridge("gpt2")
    return predict(model, zoo.prompt(model, N), TARGET)
