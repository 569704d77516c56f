"""A short ``repr`` for dataclasses that hold tensors or models."""

from dataclasses import fields
from typing import Any

LONGEST = 60  # characters of a field


def short_repr(record: Any) -> str:
    """The fields of a dataclass: tensors and models by kind and size, everything else cut short."""
    shown = (f"{field.name}={_short(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if not isinstance(value, bool | int | float | str | tuple | type(None)):
        return f"<{type(value).__name__}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})" if len(value) <= 2 else f"<{len(value)} of them>"
    shown = repr(value)
    return shown if len(shown) <= LONGEST else shown[:LONGEST] + "…"
