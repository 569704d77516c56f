"""Which question is put to a prompt: which token, rather than which other, at which position, or which span."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens.cli.flag_groups import with_flags

if TYPE_CHECKING:
    from heta_lens import Method
    from heta_lens._util.target_kinds import Kind

TARGET = (
    "The token to explain, as text or id:N (default: the most likely one); repeated, any of several: their joint "
    "probability."
)
AGAINST = "Explain why --target rather than this token: the difference of their log-probabilities. May be repeated."
FUNCTION = "Explain a function of the logits instead of a token: one of your own files, as margins:entropy."
POSITION = "Explain the token at position P of the prompt, from the tokens before it; -1 is the last."
SPAN = "Explain the tokens from START to before STOP (to the end), as if the model had written them."
THROUGH = "With --span: pass the answer's scores on through the model's reasoning at START:STOP."
GENERATE = "Let the model write up to N tokens, the most likely each time; print and explain them, or --span of them."
FLAGS: dict[str, Any] = {
    "target": Annotated[list[str] | None, typer.Option(metavar="TOKEN", help=TARGET)],
    "against": Annotated[list[str] | None, typer.Option(metavar="TOKEN", help=AGAINST)],
    "target_function": Annotated[str | None, typer.Option(metavar="MODULE:NAME", help=FUNCTION)],
    "position": Annotated[int | None, typer.Option(metavar="P", help=POSITION)],
    "span": Annotated[str | None, typer.Option(metavar="START[:STOP]", help=SPAN)],
    "through": Annotated[str | None, typer.Option(metavar="START:STOP", help=THROUGH)],
    "generate": Annotated[int | None, typer.Option(metavar="N", min=1, help=GENERATE)],
}
"""What a question is put by."""

with_question_flags = with_flags(FLAGS, "question_flags")
"""Gives a command these flags; it gets those that were used as ``question_flags``, for `question_of`."""

TARGET_FLAGS = {name: FLAGS[name] for name in ("target", "against", "target_function", "position")}
with_target_flags = with_flags(TARGET_FLAGS, "question_flags")
"""The same, of one token."""


@dataclass(frozen=True)
class Span:
    """Positions of a prompt, negative ones counted from its end; to the end, if there is no ``stop``."""

    start: int
    stop: int | None = None

    @classmethod
    def read(cls, flag: str, written: str) -> "Span":
        """``"3:7"``, ``"3:"`` or ``"3"``, which is ``"3:"``."""
        match = re.fullmatch(r"(-?\d+)(?::(-?\d+)?)?", written.strip())
        if match is None:
            raise ValueError(f"{flag} {written} is no span of positions: write START:STOP, as 3:7, or -2 to the end")
        start, stop = int(match[1]), None if match[2] is None else int(match[2])
        if stop is not None and stop <= start and (start < 0) == (stop < 0):
            raise ValueError(f"{flag} {written} has no tokens: STOP must come after START")
        return cls(start, stop)


@dataclass(frozen=True)
class Question:
    """What is to be explained of a prompt; ``target`` and the others are as `attribute` and `attribute_span` have them.

    With a ``span``, or tokens to ``generate``, it is about several tokens.
    """

    target: Any = None
    position: int | None = None
    span: Span | None = None
    through: tuple[int, int] | None = None
    generate: int | None = None

    @property
    def of_span(self) -> bool:
        return self.span is not None or self.generate is not None

    @property
    def kind(self) -> "Kind":
        """What kind of target it is, as far as that is known without a model."""
        if isinstance(self.target, tuple):
            return "contrast"
        return "function" if callable(self.target) else "set" if isinstance(self.target, set) else "token"

    def check(self, method: "Method") -> None:
        """Refuse a method that does not explain this kind of target, before a model is loaded."""
        from heta_lens.methods.base import refusal

        if self.kind not in method.takes:
            raise refusal(method, self.kind, getattr(self.target, "__name__", self.target))


def question_of(question_flags: Mapping[str, Any]) -> Question:
    """The one question that was put; contradictions are refused."""
    _check(question_flags)
    span, through = (
        Span.read(f"--{name}", question_flags[name]) if name in question_flags else None for name in ("span", "through")
    )
    if through is not None and through.stop is None:
        written = question_flags["through"]
        raise ValueError(f"--through {written} has no end: write START:STOP, where the reasoning stands")
    return Question(
        target=_target(question_flags),
        position=question_flags.get("position"),
        span=span,
        through=None if through is None or through.stop is None else (through.start, through.stop),
        generate=question_flags.get("generate"),
    )


ONE_TOKEN = "target", "against", "target_function", "position"
SEVERAL_TOKENS = "span", "generate"


def _check(question_flags: Mapping[str, Any]) -> None:
    one, several = (
        [name for name in names if question_flags.get(name) is not None] for names in (ONE_TOKEN, SEVERAL_TOKENS)
    )
    if one and several:
        raise ValueError(f"{_flag(one[0])} is about one token, and {_flag(several[0])} about several: give one of them")
    if "through" in question_flags and not several:
        raise ValueError("--through goes with --span or --generate, which say where the answer is: give one too")
    if "against" in question_flags and "target" not in question_flags:
        raise ValueError("--against goes with --target, the token that is explained rather than it: give that too")
    if "target_function" in question_flags and ("target" in question_flags):
        raise ValueError("--target and --target-function both say what is explained: give one of them")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _target(question_flags: Mapping[str, Any]) -> Any:
    """As `attribute` takes it: a token, a set of tokens, a pair of these, or a function."""
    if "target_function" in question_flags:
        return _function(question_flags["target_function"])
    if "target" not in question_flags:
        return None
    target = _side(question_flags["target"])
    return (target, _side(question_flags["against"])) if "against" in question_flags else target


def _side(given: Sequence[str]) -> Any:
    tokens = [*dict.fromkeys(map(_token, given))]
    return tokens[0] if len(tokens) == 1 else {*tokens}


def _token(written: str) -> str | int:
    match = re.fullmatch(r"id:(\d+)", written)
    return int(match[1]) if match else written


def _function(name: str) -> Any:
    from heta_lens._util.named_objects import is_object_name, named_object

    if not is_object_name(name):
        raise ValueError(f"--target-function {name} is not of the form MODULE:NAME, as margins:entropy")
    function = named_object(name)
    if isinstance(function, type) or not callable(function):
        raise ValueError(f"--target-function {name} is no function of the logits")
    return function
