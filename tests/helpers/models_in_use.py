"""Models in the middle of somebody's work."""

from collections.abc import Callable
from typing import Any

from helpers import zoo

OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: zoo.bridge.__wrapped__("gpt2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}

N = 12  # tokens of a prompt: more than share a prefix
TWO_KINDS = list(OWN_KINDS)[:: len(OWN_KINDS) - 1]


def noted(seen: list[Any]) -> Callable[..., None]:
    return lambda activation, hook: seen.append((activation.shape, hook.name))


class Failure(Exception):
    """Like no other."""
