"""Targets by kind: a token, a set of tokens, a contrast of two sides, a function of the logits, or an activation.

The probability of a set is the sum of the members' probabilities.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

Kind: TypeAlias = Literal["token", "set", "contrast", "function", "activation"]
Side: TypeAlias = int | frozenset[int]
"""A side of a contrast, or a whole target: an id, or a set of at least two ids."""
TargetFunction: TypeAlias = Callable[[Tensor], Tensor]
"""A function from the next token's logits, ``Float[Tensor, "vocab"]``, to a tensor of shape ()."""
Target: TypeAlias = Side | tuple[Side, Side] | TargetFunction

KINDS: tuple[Kind, ...] = get_args(Kind)
NAMED = 6  # members named in messages
FUNCTION = "function"  # the key of a function's name in a file


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


@dataclass(frozen=True, eq=False, repr=False)
class Activation:
    """A number that is read from an activation at the last token of the context, as a target: see `activation`.

    ``offset`` and ``shape`` say where the activation lies in what a run returns; they are known once the model is.
    """

    hook_name: str
    index: int | None = None
    head: int | None = None
    direction: Tensor | None = None
    function: TargetFunction | None = None
    minus: "Activation | None" = None
    at: int | None = None
    offset: int = 0
    shape: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"activation({self.name})"

    @property
    def hook_names(self) -> tuple[str, ...]:
        return (self.hook_name, *(self.minus.hook_names if self.minus else ()))

    @property
    def name(self) -> str:
        """The target in words, such as ``blocks.5.mlp.hook_post[12]``."""
        place = self.hook_name + f"[head {self.head}]" * (self.head is not None)
        if self.index is not None:
            place += f"[{self.index}]"
        elif self.function is not None:
            place = f"{function_name(self.function)}({place})"
        else:
            place = f"direction · {place}"
        return f"{place} − {self.minus.name}" if self.minus else place

    @property
    def stored(self) -> dict[str, Any]:
        """The fields that a file holds; a function by its name."""
        kept = {name: value for name, value in vars(self).items() if value is not None}
        if self.function is not None:
            kept[FUNCTION] = function_name(self.function)
        if self.minus is not None:
            kept["minus"] = self.minus.stored
        return kept | {"shape": list(self.shape)}

    def __call__(self, read: Tensor) -> Tensor:
        part = read[self.offset : self.offset + prod(self.shape)].reshape(self.shape)
        part = part if self.head is None else part[self.head]
        if self.function is not None:
            value = self.function(part)
        else:
            value = part[self.index] if self.direction is None else part @ self.direction.to(part)
        return value - self.minus(read) if self.minus else value


def saved_target(stored: Mapping[str, Any]) -> Activation | SavedFunction:
    """Return the function or activation that a file holds."""
    if "hook_name" not in stored:
        return SavedFunction(str(stored[FUNCTION]))
    values = {**stored, "shape": tuple(stored["shape"])}
    if FUNCTION in stored:
        values[FUNCTION] = SavedFunction(str(stored[FUNCTION]))
    if "minus" in stored:
        values["minus"] = saved_target(stored["minus"])
    return Activation(**values)


def kind_of(target: Any) -> Kind:
    """Return the kind of a target, of ids or of texts."""
    if isinstance(target, Activation):
        return "activation"
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
    if isinstance(function, SavedFunction | Activation):
        return function.name
    if isinstance(function, partial):
        return function_name(function.func)
    own = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(own or type(function).__qualname__).rpartition("<locals>.")[2]


def any_of(texts: Sequence[str]) -> str:
    """Describe a set of tokens by the tokens' texts."""
    shown = ", ".join(map(repr, texts[:NAMED]))
    return f"any of {shown}" + (f", … ({len(texts)} tokens)" if len(texts) > NAMED else "")


def of_logits(target: Any) -> str:
    """Write a function as the function of logits that it is, and an activation by its name."""
    return function_name(target) + "(logits)" * (not isinstance(target, Activation))


def described(target: Target, text: str | tuple[str, ...]) -> str:
    """Describe a target by its text: a token in quotes, a contrast as ``'a' rather than 'b'``."""
    if callable(target):
        return of_logits(target)
    both = zip(sides(target), text if isinstance(text, tuple) else (text,), strict=True)
    return " rather than ".join(repr(own) if isinstance(side, int) else own for side, own in both)
