"""Runs of some blocks of a model only: every other block hands on the residual stream that it is given.

The model's own code still prepares masks, positions, rotations and kept keys and values, and calls every block, so what
runs is the same as in a run of the whole model, whatever the architecture. A bridge cannot start or stop at a layer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from heta_lens.model.locking import changing, undo_at_end
from heta_lens.model.model_protocol import Model

Form: TypeAlias = int | None
"""What a block returns: the stream alone, or a tuple of so many that begins with it."""


@contextmanager
def forms_noted(model: Model, blocks: Mapping[int, Any], forms: dict[int, Form]) -> Iterator[None]:
    """Note the form of what each block returns, in a run of the whole model."""
    handles = list[Any]()

    def remove() -> None:
        for handle in handles:
            handle.remove()

    with changing(model, remove):
        handles += [block.register_forward_hook(partial(_note, forms, layer)) for layer, block in blocks.items()]
        yield


def _note(forms: dict[int, Form], layer: int, _: Any, __: Any, output: Any) -> None:
    forms[layer] = len(output) if isinstance(output, tuple) else None


def skip(model: Model, blocks: Mapping[int, Any], forms: Mapping[int, Form]) -> None:
    """Let these blocks hand on what they are given, until the call that has the model ends."""
    before = {layer: vars(block).get("forward") for layer, block in blocks.items()}
    undo_at_end(model, partial(_restore, blocks, before))
    for layer, block in blocks.items():
        # Past `setattr`, with which a bridge would change the block that it wraps.
        vars(block)["forward"] = partial(_hand_on, forms[layer])


def _restore(blocks: Mapping[int, Any], before: Mapping[int, Any]) -> None:
    for layer, block in blocks.items():
        if before[layer] is None:
            vars(block).pop("forward", None)
        else:
            vars(block)["forward"] = before[layer]


def _hand_on(form: Form, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor | None, ...]:
    stream = args[0] if args else kwargs["hidden_states"]
    return stream if form is None else (stream, *[None] * (form - 1))
