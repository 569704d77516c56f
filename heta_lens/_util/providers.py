"""What a result calls of the floors above it: `heta_lens` registers it, and it is imported when it is first called."""

from collections.abc import Callable
from typing import Any

_loaders: dict[str, Callable[[], Any]] = {}


def provide(name: str, load: Callable[[], Any]) -> None:
    """Register a module under a name."""
    _loaders[name] = load


def provided(name: str) -> Any:
    """Return the registered module of a name."""
    return _loaders[name]()
