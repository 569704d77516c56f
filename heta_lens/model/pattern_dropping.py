"""Bridges whose queries, keys and values are fused keep every layer's last pattern on the model, and nobody reads it.

All layers' patterns are then held at once, and of a run with gradients its graph as well, until the next run.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from heta_lens.model.locking import undo_at_end
from heta_lens.model.model_protocol import Model

KEPT = "_pattern"


def drop_patterns(model: Model, blocks: Iterable[Any]) -> None:
    """Drop what was kept, and until the call that has the model ends also what would be, as soon as a layer is done."""
    handles = list[Any]()
    undo_at_end(model, partial(_remove, handles))
    for attention in (getattr(block, "attn", None) for block in blocks):
        if attention is not None and KEPT in vars(attention):
            _drop(attention)
            handles.append(attention.register_forward_hook(_drop))


def _drop(attention: Any, *_: Any) -> None:
    vars(attention)[KEPT] = None


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()
