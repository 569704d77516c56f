"""The requests of the page, which are checked when they are made."""

from base64 import b64decode
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from heta_lens._util.files import brief
from heta_lens._util.options import hint, keywords
from heta_lens._util.presets import PRESETS
from heta_lens._util.storage import only_vector
from heta_lens.methods.registry import ALIASES, METHODS, method_of
from heta_lens.prediction.target import activation

EXACT = ConfigDict(strict=True, extra="forbid")
T = TypeVar("T")


def _offered(method: str) -> str:
    """Return a method with its options, as in ``lime samples=200``, as a command takes it."""
    name, *options = method.split() or [""]
    if name not in (names := [*PRESETS, *METHODS, *ALIASES]):
        raise ValueError(f"the app has no such method{hint(name, names)}")
    method_of(name, keywords(options))
    return method


Natural: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Naturals: TypeAlias = Annotated[list[Natural], Field(fail_fast=True)]
MethodName: TypeAlias = Annotated[str, AfterValidator(_offered)]
Prompt: TypeAlias = (
    str | Annotated[list[dict[Annotated[str, Field(pattern="^(role|content)$")], str]], Field(fail_fast=True)]
)


@dataclass(frozen=True, config=EXACT)
class Token:
    """A token by its ``text``, and perhaps another ``against`` it."""

    text: str
    against: str | None = None


@dataclass(frozen=True, config=EXACT)
class Activation:
    """A ``hook`` with an ``index`` or a ``direction`` (a safetensors file in base64), and perhaps a ``head``."""

    hook: str
    index: Natural | None = None
    head: Natural | None = None
    direction: str | None = None


@dataclass(frozen=True, config=EXACT)
class Question:
    """A prompt, the ids that the model wrote after the prompt, and the target.

    - ``prompt``: a text, or the messages of a chat
    - ``at``: the index of the explained token in ``written``; its length for the next token, None for all tokens
    - ``target``: None for the written (or most likely) token
    """

    prompt: Prompt
    written: Naturals = field(default_factory=list)
    at: Natural | None = None
    target: Token | Activation | None = None


def target_of(question: Question) -> Any:
    """Return the target in the form that `attribute` takes."""
    target = question.target
    if target is None:
        return None
    if isinstance(target, Token):
        return (target.text, target.against) if target.against else target.text
    direction = None if target.direction is None else only_vector("the direction's file", b64decode(target.direction))
    return activation(target.hook, index=target.index, direction=direction, head=target.head)


@dataclass(frozen=True, config=EXACT)
class Change:
    """A change of tokens, and the ``results`` whose scores are compared with the effect of the change.

    - ``how``: ``text`` replaces the tokens, or ``counterfactual`` is the prompt to patch from
    - ``layer``: the layer whose input is patched; 0 for the embeddings
    """

    positions: Annotated[Naturals, Field(min_length=1)]
    how: Literal["mask", "delete", "resample", "replace", "patch"]
    text: str = ""
    counterfactual: Prompt = ""
    layer: Natural = 0
    results: Naturals = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.how == "patch" and not self.counterfactual:
            raise ValueError("how='patch' needs a counterfactual prompt")


@dataclass(frozen=True, config=EXACT)
class Write:
    prompt: Prompt
    tokens: Annotated[Natural, Field(ge=1)]


@dataclass(frozen=True, config=EXACT)
class Explain:
    question: Question
    methods: Annotated[list[MethodName], Field(min_length=1, fail_fast=True)]
    patient: list[str] = field(default_factory=list)  # whose long wait was accepted


@dataclass(frozen=True, config=EXACT)
class ChangeTokens:
    question: Question
    change: Change


@dataclass(frozen=True, config=EXACT)
class FindComponents:
    """The tokens whose components are found; ``patient`` accepts a long wait."""

    question: Question
    positions: Annotated[Naturals, Field(min_length=1)]
    patient: bool = False


@dataclass(frozen=True, config=EXACT)
class Compare:
    results: Annotated[Naturals, Field(min_length=2)]


def read(kind: type[T], body: bytes) -> T:
    """Read a request from JSON; refuse other bodies, and name the first fault."""
    try:
        return TypeAdapter(kind).validate_json(body)
    except ValidationError as error:
        fault = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # a union has one per type
        place = ".".join(brief(part).strip("'") for part in fault["loc"] if "[" not in str(part))
        if fault["type"] not in ("missing", "json_invalid") and place:
            place += f"={brief(fault['input'])}"
        raise ValueError(f"{place or 'the request'}: {fault['msg'].removeprefix('Value error, ')}") from None
