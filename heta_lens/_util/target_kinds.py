"""Kinds of target: a token, a set of tokens, a contrast of two of these, or a function of the logits; and their names.

A set is one target: its probability is the sum of its members'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

Kind: TypeAlias = Literal["token", "set", "contrast", "function"]
Side: TypeAlias = int | frozenset[int]
"""Of a contrast, or all of another target: an id, or a set of at least two."""
TargetFunction: TypeAlias = Callable[[Tensor], Tensor]
"""Of the logits that predict the next token, ``Float[Tensor, "vocab"]``: a number, as a tensor of shape ()."""
Target: TypeAlias = Side | tuple[Side, Side] | TargetFunction

KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = 6  # members of a set that are named


@dataclass(frozen=True)
class SavedFunction:
    """Stands for a function in an attribution that was loaded: a file holds no more of it than its name."""

    name: str

    @property
    def why(self) -> str:
        """Why it cannot be called, and the way out."""
        return (
            f"this attribution's target is the function {self.name}, of which a file holds only the name: put it back "
            "with dataclasses.replace(attribution, target=function)"
        )

    def __call__(self, logits: Tensor) -> Tensor:  # noqa: ARG002
        raise ValueError(self.why)


def kind_of(target: Target) -> Kind:
    if isinstance(target, tuple):
        return "contrast"
    return "function" if callable(target) else "set" if isinstance(target, frozenset) else "token"


def sides(target: Target) -> tuple[Side, ...]:
    """The two sides of a contrast; of a function none; else the only one."""
    if isinstance(target, tuple):
        return target
    return () if callable(target) else (target,)


def members(side: Side) -> list[int]:
    """The ids, in ascending order."""
    return sorted(side) if isinstance(side, frozenset) else [side]


def function_name(function: Any) -> str:
    """Its own name without where it was defined, for messages and titles."""
    if isinstance(function, SavedFunction):
        return function.name
    if isinstance(function, partial):
        return function_name(function.func)
    own = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(own or type(function).__qualname__).rpartition("<locals>.")[2]


def any_of(texts: Sequence[str]) -> str:
    """A set of tokens in words, by how they are written."""
    shown = ", ".join(map(repr, texts[:NAMED]))
    return f"any of {shown}" + (f", … ({len(texts)} tokens)" if len(texts) > NAMED else "")


def described(target: Target, text: str | tuple[str, ...]) -> str:
    """A target in words, by its text: a token in quotes, a contrast as one rather than the other."""
    if callable(target):
        return f"{text}(logits)"
    both = zip(sides(target), text if isinstance(text, tuple) else (text,), strict=True)
    return " rather than ".join(repr(own) if isinstance(side, int) else own for side, own in both)
