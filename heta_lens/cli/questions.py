"""Questions about a prompt (a target, a position or a span), and the run of a model for an answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from typer import Option

from heta_lens.cli.flags import Prompt, given, used

if TYPE_CHECKING:
    from heta_lens import Attribution, Method, Prediction, SpanAttribution

Explained: TypeAlias = "Attribution | SpanAttribution"

TARGET = (
    "The token to explain, as text or id:N (default: the most likely one); repeated, any of several: their joint "
    "probability."
)
AGAINST = "Explain why --target rather than this token: the difference of their log-probabilities. May be repeated."
FUNCTION = "Explain a function of the logits instead of a token: one of your own files, as margins:entropy."
ACTIVATION = "Explain a number of an activation instead, by its hook point, as blocks.5.hook_resid_post, with:"
INDEX = "With --activation: the component, as of a neuron."
DIRECTION = "With --activation: a direction, as of a probe: a safetensors file with one vector."
HEAD = "With --activation: the head, of an activation by heads."
POSITION = "Explain the token at position P of the prompt, from the tokens before it; -1 is the last."
SPAN = "Explain the tokens from START to before STOP (to the end), as if the model had written them."
THROUGH = "With --span: pass the answer's scores on through the model's reasoning at START:STOP."
GENERATE = "Let the model write up to N tokens, the most likely each time; print and explain them, or --span of them."


class Span(NamedTuple):
    """Positions of a prompt from ``start`` to before ``stop``, or to the end; negative positions count from the end."""

    start: int
    stop: int | None = None

    @classmethod
    def read(cls, flag: str, written: str) -> "Span":
        """Return the span of ``"3:7"``, ``"3:"`` or ``"3"``; ``"3"`` means ``"3:"``."""
        match = re.fullmatch(r"(-?\d+)(?::(-?\d+)?)?", written.strip())
        if match is None:
            raise ValueError(f"{flag} {written} is no span of positions: write START:STOP, as 3:7, or -2 to the end")
        return cls(int(match[1]), None if match[2] is None else int(match[2]))


@dataclass(frozen=True)
class Question:
    """A question about a prompt; ``target`` is an argument of `attribute`, ``through`` of `attribute_span`.

    A ``span``, or tokens to ``generate``, ask about several tokens.
    """

    target: Any = None
    position: int | None = None
    span: Span | None = None
    through: tuple[int, int] | None = None
    generate: int | None = None

    def check(self, method: "Method") -> None:
        """Refuse a method without support for the kind of target, before a model is loaded."""
        from heta_lens._util.target_kinds import function_name, kind_of
        from heta_lens.methods.base import refusal

        if (kind := kind_of(self.target)) not in method.takes:
            raise refusal(method, kind, function_name(self.target) if callable(self.target) else self.target)


@dataclass(frozen=True)
class TargetFlags:
    """Flags of a question about a token."""

    target: Annotated[list[str] | None, Option(metavar="TOKEN", help=TARGET)] = None
    against: Annotated[list[str] | None, Option(metavar="TOKEN", help=AGAINST)] = None
    target_function: Annotated[str | None, Option(metavar="MODULE:NAME", help=FUNCTION)] = None
    activation: Annotated[str | None, Option(metavar="HOOK", help=ACTIVATION)] = None
    index: Annotated[int | None, Option(metavar="N", min=0, help=INDEX)] = None
    direction: Annotated[str | None, Option(metavar="FILE", help=DIRECTION)] = None
    head: Annotated[int | None, Option(metavar="H", min=0, help=HEAD)] = None
    position: Annotated[int | None, Option(metavar="P", help=POSITION)] = None

    def question(self) -> Question:
        """Return the question; refuse contradictory flags."""
        if self.against and not self.target:
            raise ValueError("--against goes with --target, the token that is explained rather than it: give that too")
        if self.target and (others := given(target_function=self.target_function, activation=self.activation)):
            raise ValueError(f"--target and {shown(others)} both say what is explained: give one of them")
        if given(
            one=self.activation, function=self.target_function, index=self.index, head=self.head, of=self.direction
        ):
            return Question(self.number(), self.position)
        target, against = (_side(given) for given in (self.target, self.against))
        return Question(target if against is None else (target, against), self.position)

    def number(self) -> Any:
        """Return the function or activation that is explained."""
        from heta_lens._util.files import regular_file
        from heta_lens._util.options import named_object
        from heta_lens._util.storage import only_vector
        from heta_lens.prediction.target import activation

        function: Any = None if self.target_function is None else named_object(self.target_function)
        if function is not None and not callable(function):
            raise ValueError(f"--target-function {self.target_function} is {function!r}, which is no function")
        of_it = given(index=self.index, head=self.head, direction=self.direction)
        if self.activation is None:
            if of_it:
                raise ValueError(f"{shown(of_it)} is of an activation: give --activation HOOK too")
            return function
        if sum(way is not None for way in (self.index, self.direction, function)) != 1:
            raise ValueError(f"--activation {self.activation} takes one of --index, --direction and --target-function")
        if self.direction is not None:
            of_it["direction"] = only_vector(f"--direction {self.direction}", regular_file(self.direction).read_bytes())
        if function is not None:
            of_it["function"] = function
        return activation(self.activation, **of_it)


def shown(flags: Mapping[str, Any]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in flags)


@dataclass(frozen=True)
class QuestionFlags(TargetFlags):
    """Flags of a question about a token or a span."""

    span: Annotated[str | None, Option(metavar="START[:STOP]", help=SPAN)] = None
    through: Annotated[str | None, Option(metavar="START:STOP", help=THROUGH)] = None
    generate: Annotated[int | None, Option(metavar="N", min=1, help=GENERATE)] = None

    def question(self) -> Question:
        several = [name for name in ("span", "generate") if getattr(self, name) is not None]
        if self.through is not None and not several:
            raise ValueError("--through goes with --span or --generate, which say where the answer is: give one too")
        if not several:
            return super().question()
        of_numbers = {"activation", "index", "direction", "head", "target_function"}
        allowed = {"span", "generate", "through"} | (of_numbers if self.activation and not self.through else set())
        if one := [name for name in used(self) if name not in allowed]:
            flag = one[0].replace("_", "-")
            raise ValueError(f"--{flag} is about one token, and --{several[0]} about several: give one of them")
        span = None if self.span is None else Span.read("--span", self.span)
        if self.through is None:
            target = self.number() if self.activation else None
            return Question(target, span=span, generate=self.generate)
        start, stop = Span.read("--through", self.through)
        if stop is None:
            raise ValueError(f"--through {self.through} has no end: write START:STOP, where the reasoning stands")
        return Question(span=span, through=(start, stop), generate=self.generate)


def _side(given: Sequence[str] | None) -> Any:
    """Return a token, a set of several tokens, or None; ``id:N`` is the token of an id."""
    ids = {written: re.fullmatch(r"id:(\d+)", written) for written in given or ()}
    tokens = [int(match[1]) if match else written for written, match in ids.items()]
    return frozenset(tokens) if len(tokens) > 1 else next(iter(tokens), None)


# ----------------------------------------------------------------------------------------------------- prompt running


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt after the run of a model: the ``cache``, the ``tokens`` (ids, or a chat), and the generated text.

    ``span`` is the position of the explained tokens, of a question about several tokens.
    """

    cache: Any
    tokens: Any
    span: Span | None = None
    written: str | None = None

    def prediction(self, question: Question) -> "Prediction":
        from heta_lens.prediction.prediction import Prediction

        return Prediction.from_cache(self.cache, question.target, position=question.position, tokens=self.tokens)

    def explained(self, question: Question, method: "Method") -> Explained:
        from heta_lens.api import attribute, attribute_span

        if self.span is None:
            return attribute(self.cache, question.target, position=question.position, tokens=self.tokens, method=method)
        how = {"through": question.through, "tokens": self.tokens, "method": method}
        return attribute_span(self.cache, *self.span, targets=question.target, **how)


def read_prompt(model: str, prompt: Prompt, question: Question, **loading: Any) -> ReadPrompt:
    """Load a model, and run the model on a prompt. Work is reported in lines where no bar can be drawn."""
    from heta_lens._util.work import in_lines
    from heta_lens.model.loading import load_model

    in_lines.set(True)
    return read_by(load_model(model, **loading), prompt, question)


def read_by(model: Any, prompt: Prompt, question: Question) -> ReadPrompt:
    """Run a loaded model on a prompt, after generation of tokens for a question with ``generate``."""
    from heta_lens.model.adapter import ModelAdapter
    from heta_lens.model.hooks import lean_names_filter
    from heta_lens.prediction.chat import ChatPrompt, read_prompt
    from heta_lens.prediction.generation import continuation

    adapter, tokens = ModelAdapter(model), read_prompt(model, prompt)
    ids = tokens.tokens if isinstance(tokens, ChatPrompt) else tokens
    if question.generate is None:
        return ReadPrompt(adapter.cache(ids, lean_names_filter), tokens, question.span)
    generated, before = continuation(adapter, ids, question.generate), ids[0].tolist()
    text = "".join(adapter.tokenizer.write(token, before + generated[:at]) for at, token in enumerate(generated))
    whole = ids.new_tensor([before + generated])
    tokens = tokens.followed_by(whole[:, len(before) :]) if isinstance(tokens, ChatPrompt) else whole
    return ReadPrompt(adapter.cache(whole, lean_names_filter), tokens, question.span or Span(len(before)), text)
