"""Which blocks of a model run, and a model whose blocks hand each other more than the residual stream."""

from functools import partial
from typing import Any

from helpers import zoo


def attentions(model: Any) -> list[int]:
    """Lists the layers whose attention runs, from now on; not by hooks, which would be somebody's."""
    ran: list[int] = []
    for layer, block in enumerate(model.blocks):
        vars(block.attn)["forward"] = partial(_noted, ran, layer, block.attn.forward)
    return ran


def _noted(ran: list[int], layer: int, forward: Any, *args: Any, **kwargs: Any) -> Any:
    ran.append(layer)
    return forward(*args, **kwargs)


def with_side_channel(*, last: bool = False) -> Any:
    """A new model in which the first block scales what the second attends to, by how large it is (``last``: was)."""
    model, told = zoo.NEW["gpt2"](), list[Any]()
    first, second = (block.attn for block in model.blocks)
    plain, changed = first.forward, second.forward

    def tell(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        told[:] = [hidden_states.detach().abs().mean()]
        return plain(hidden_states, *args, **kwargs)

    def hear(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        scale = told[0] if told else 1.0
        told[:] = told if last else []
        return changed(hidden_states * scale, *args, **kwargs)

    vars(first)["forward"], vars(second)["forward"] = tell, hear
    return model
