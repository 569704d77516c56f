"""Values as JSON can hold them."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    """As JSON has it: no number that is not finite (infinities as text, None for one that is missing)."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if value != value else f"{value:+}"
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
