"""Which question is put to a prompt: which token, rather than which other, at which position, or which span."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from heta_lens.cli.app import with_flags
from heta_lens.cli.flags import Prompt

if TYPE_CHECKING:
    from heta_lens import Attribution, Method, SpanAttribution
    from heta_lens._util.target_kinds import Kind
    from heta_lens.model.loading import WithoutWeights


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
    from heta_lens._util.options import is_object_name, named_object

    if not is_object_name(name):
        raise ValueError(f"--target-function {name} is not of the form MODULE:NAME, as margins:entropy")
    function = named_object(name)
    if isinstance(function, type) or not callable(function):
        raise ValueError(f"--target-function {name} is no function of the logits")
    return function


# ----------------------------------------------------------------------------------------------- checks before loading
# What of a question the configuration and the tokenizer alone can refuse, before any weights are read.


def check_before_loading(model: str, prompt: Prompt, question: Question, **loading: Any) -> None:
    """Refuse a text that is too long, a place outside of it, and a target that is not one token.

    Models that load at once are not looked at, nor are GGUF files, whose weights are read in no more time than their
    tokenizer. Neither are chats, and files that cannot be read here: loading the model
    says what is wrong with them.
    """
    if model == "demo" or "gguf_file" in loading or model.endswith(".gguf") or not isinstance(prompt, str):
        return
    from heta_lens.model.loading import load_without_weights
    from heta_lens.model.tokenizer import check_text

    check_text(prompt)
    hub = {name: loading[name] for name in ("revision", "trust_remote_code") if name in loading}
    try:
        known = load_without_weights(model, **hub)
    except ValueError:
        return
    ids = known.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    _check_length(known, len(ids))
    _check_places(question, len(ids) + _added(known.tokenizer, prompt, len(ids)))
    _check_target(known, question.target, ids)


def _added(tokenizer: Any, prompt: str, count: int) -> int:
    """How many tokens there may be beside the text's own: those that the tokenizer adds, or one that begins it."""
    return max(1, len(tokenizer(prompt)["input_ids"]) - count)


def _check_length(known: "WithoutWeights", count: int) -> None:
    longest = getattr(known.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and count > longest:
        raise ValueError(f"the text is {count} tokens long, and this model reads {longest} at most")


def _check_places(question: Question, most: int) -> None:
    """Refuse places outside of the prompt and what is written after it, which have at most so many tokens."""
    most += question.generate or 0
    span = () if question.span is None else (question.span.start, question.span.stop)
    places = {"--position": (question.position,), "--span": span, "--through": question.through or ()}
    for flag, given in places.items():
        for place in given:
            if place is not None and not -most <= place <= most:
                raise ValueError(f"{flag} {place} is outside of the text, which has at most {most} tokens")


def _check_target(known: "WithoutWeights", target: Any, ids: list[int]) -> None:
    """Refuse texts that are not a single token, and ids that no token has."""
    from heta_lens._util.options import check_token
    from heta_lens.model.tokenizer import TokenizerWrapper

    tokenizer = TokenizerWrapper(known.tokenizer)
    size = known.config.get_text_config().vocab_size
    for side in target if isinstance(target, tuple) else (target,):
        for token in side if isinstance(side, set) else (side,):
            if isinstance(token, str) and not tokenizer.is_single(token):  # to look for it takes seconds
                tokenizer.find(token, ids, [0.0] * len(known.tokenizer))
            elif isinstance(token, int):
                check_token("target", token, size)


# ------------------------------------------------------------------------------------------------------ prompt running
# A model reads a prompt, perhaps goes on writing, and what was asked is explained.


Explained: TypeAlias = "Attribution | SpanAttribution"


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt as a model read it: the ``cache``, the ``tokens`` (ids, or a chat), and what it wrote after it.

    ``span`` is where the tokens stand that are explained, if they are several.
    """

    cache: Any
    tokens: Any
    span: Span | None = None
    written: str | None = None

    def explained(self, question: Question, method: "Method") -> Explained:
        from heta_lens.api import attribute, attribute_span

        if self.span is None:
            return attribute(self.cache, question.target, position=question.position, tokens=self.tokens, method=method)
        place = self.span.start, self.span.stop
        return attribute_span(self.cache, *place, through=question.through, tokens=self.tokens, method=method)


def read_prompt(model: str, prompt: Prompt, question: Question, **loading: Any) -> ReadPrompt:
    """Load the model, and have it read the prompt; and write, if that is the question."""
    return read_by(loaded_for(model, prompt, question, **loading), prompt, question)


def loaded_for(model: str, prompt: Prompt, question: Question, **loading: Any) -> Any:
    """The model, unless it can be refused before it is loaded that this prompt and question do not fit it."""
    from heta_lens.model.loading import load_model

    check_before_loading(model, prompt, question, **loading)
    return load_model(model, **loading)


def read_by(loaded: Any, prompt: Prompt, question: Question) -> ReadPrompt:
    """The prompt as this model reads it."""
    from heta_lens.model.adapter import ModelAdapter
    from heta_lens.model.hooks import lean_names_filter

    tokens, ids = _encoded(loaded, prompt)
    adapter = ModelAdapter(loaded)
    if question.generate is None:
        return ReadPrompt(adapter.cache(ids, lean_names_filter), tokens, question.span)
    added = _written(adapter, ids, question.generate)
    text = "".join(adapter.tokenizer.write(token, [*ids[0].tolist(), *added[:at]]) for at, token in enumerate(added))
    whole = ids.new_tensor([[*ids[0].tolist(), *added]])
    tokens = whole if isinstance(prompt, str) else tokens.followed_by(whole[:, ids.shape[1] :])
    return ReadPrompt(adapter.cache(whole, lean_names_filter), tokens, question.span or Span(ids.shape[1]), text)


def _encoded(loaded: Any, prompt: Prompt) -> tuple[Any, Any]:
    """The tokens as `attribute` takes them, a chat or ids; and the ids."""
    from heta_lens.model.tokenizer import encode, refuse_unknown
    from heta_lens.prediction.chat import chat

    if isinstance(prompt, str):
        ids = encode(loaded, prompt)
        return ids, ids
    tokens = chat(loaded, prompt)
    refuse_unknown(loaded, tokens.text)
    return tokens, tokens.tokens


def _written(adapter: Any, ids: Any, count: int) -> list[int]:
    """The ids that the model writes after these, up to the one that ends a text."""
    from heta_lens.model.hooks import lean_names_filter
    from heta_lens.prediction.generation import Writer, greedy
    from heta_lens.prediction.prediction import Prediction

    longest, length = getattr(adapter.model.cfg, "n_ctx", None), ids.shape[1] + count
    if longest is not None and length > longest:
        raise ValueError(
            f"--generate {count} makes {length} tokens of the prompt's {ids.shape[1]}, and this model reads {longest} "
            "at most"
        )
    prediction = Prediction.from_cache(adapter.cache(ids, lean_names_filter), tokens=ids)
    with prediction.running():
        writer = Writer.after(prediction, prediction.prompt.batches("auto", length), _nothing)
        written = greedy(writer, count, adapter.tokenizer.eos).tolist()
    if not written:
        raise ValueError(f"--generate {count}: the model ends the text at once, and writes nothing to explain")
    return written


def _nothing(_: int) -> None:
    """What is done with each token as it is written."""
