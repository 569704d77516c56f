"""Targets by kind: a token, a set of tokens, a contrast of two sides, or a function of the logits.

The probability of a set is the sum of the members' probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

Kind: TypeAlias = Literal["token", "set", "contrast", "function"]
Side: TypeAlias = int | frozenset[int]
"""A side of a contrast, or a whole target: an id, or a set of at least two ids."""
TargetFunction: TypeAlias = Callable[[Tensor], Tensor]
"""A function from the next token's logits, ``Float[Tensor, "vocab"]``, to a tensor of shape ()."""
Target: TypeAlias = Side | tuple[Side, Side] | TargetFunction

KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = 6  # members named in messages


@dataclass(frozen=True)
class SavedFunction:
    """A stand-in for the target function of a loaded attribution, of which a file holds the name only."""

    name: str

    @property
    def why(self) -> str:
        """The reason why a stand-in cannot be called, and the way out."""
        return (
            f"this attribution's target is the function {self.name}, of which a file holds only the name: put it back "
            "with dataclasses.replace(attribution, target=function)"
        )

    def __call__(self, logits: Tensor) -> Tensor:  # noqa: ARG002
        raise ValueError(self.why)


def kind_of(target: Any) -> Kind:
    """Return the kind of a target, of ids or of texts."""
    if isinstance(target, tuple):
        return "contrast"
    return "function" if callable(target) else "set" if isinstance(target, frozenset) else "token"


def sides(target: Target) -> tuple[Side, ...]:
    """Return the two sides of a contrast, no side of a function, or the single side of other targets."""
    if isinstance(target, tuple):
        return target
    return () if callable(target) else (target,)


def members(side: Side) -> list[int]:
    """Return the ids of a side, in ascending order."""
    return sorted(side) if isinstance(side, frozenset) else [side]


def function_name(function: Any) -> str:
    """Return a function's name without its module, for messages and titles."""
    if isinstance(function, SavedFunction):
        return function.name
    if isinstance(function, partial):
        return function_name(function.func)
    own = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(own or type(function).__qualname__).rpartition("<locals>.")[2]


def any_of(texts: Sequence[str]) -> str:
    """Describe a set of tokens by the tokens' texts."""
    shown = ", ".join(map(repr, texts[:NAMED]))
    return f"any of {shown}" + (f", … ({len(texts)} tokens)" if len(texts) > NAMED else "")


def described(target: Target, text: str | tuple[str, ...]) -> str:
    """Describe a target by its text: a token in quotes, a contrast as ``'a' rather than 'b'``."""
    if callable(target):
        return f"{text}(logits)"
    both = zip(sides(target), text if isinstance(text, tuple) else (text,), strict=True)
    return " rather than ".join(repr(own) if isinstance(side, int) else own for side, own in both)
