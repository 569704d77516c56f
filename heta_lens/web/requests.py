"""The requests of the page, which are checked when they are made."""

from base64 import b64decode
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors.torch import load
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import hint
from heta_lens._util.presets import PRESETS
from heta_lens._util.storage import only_vector, reason
from heta_lens.methods.registry import METHODS
from heta_lens.prediction.target import activation

RECOMMENDED = {
    "leave_one_out effect=log_prob": "questions about a paragraph, signs and contrasts: a forward per token",
    "careful": "other questions where agreement with deletion matters: a forward per token and one backward pass",
    "fast": "the evidence in one backward pass, but not its signs (lxt's README says that LRP is patented and free for "
    "personal and scientific use)",
    "heta": "to study the paper",
}
"""Methods with their options, and what each is recommended for."""

EXACT = ConfigDict(strict=True, extra="forbid")


def _offered(method: str) -> str:
    names = [*RECOMMENDED, *PRESETS, *METHODS]
    if method not in names:
        raise ValueError(f"the app has no such method{hint(method, names)}")
    return method


Natural: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
MethodName: TypeAlias = Annotated[str, AfterValidator(_offered)]
Prompt: TypeAlias = str | list[dict[Annotated[str, Field(pattern="^(role|content)$")], str]]


@dataclass(frozen=True, config=EXACT)
class Target:
    """A token by its ``text``, and perhaps another ``against`` it; or an activation.

    An activation is a ``hook`` with an ``index`` or a ``direction`` (a safetensors file in base64), and a ``head``.
    """

    text: str | None = None
    against: str | None = None
    hook: str | None = None
    index: Natural | None = None
    head: Natural | None = None
    direction: str | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.hook is None):
            raise ValueError("a target has either the text of a token or the hook of an activation")


@dataclass(frozen=True, config=EXACT)
class Question:
    """A prompt, the ids that the model wrote after the prompt, and the target.

    - ``prompt``: a text, or the messages of a chat
    - ``at``: the index of the explained token in ``written``; its length for the next token, None for all tokens
    - ``target``: None for the written (or most likely) token
    """

    prompt: Prompt
    written: list[Natural] = field(default_factory=list)
    at: Natural | None = None
    target: Target | None = None


def target_of(question: Question) -> Any:
    """Return the target in the form that `attribute` takes."""
    target = question.target
    if target is None:
        return None
    if target.hook is None:
        return (target.text, target.against) if target.against else target.text
    direction = None if target.direction is None else _vector(target.direction)
    return activation(target.hook, index=target.index, direction=direction, head=target.head)


def _vector(file: str) -> Tensor:
    try:
        tensors = load(b64decode(file))
    except Exception as error:  # whatever is in the file
        raise ValueError(f"the direction's file is not a safetensors file ({reason(error)})") from None
    return only_vector("the direction's file", tensors)


@dataclass(frozen=True, config=EXACT)
class Change:
    """A change of tokens, and the ``results`` whose scores are compared with the effect of the change.

    - ``how``: ``text`` replaces the tokens, or ``counterfactual`` is the prompt to patch from
    - ``layer``: the layer whose input is patched; 0 for the embeddings
    """

    positions: Annotated[list[Natural], Field(min_length=1)]
    how: Literal["mask", "delete", "replace", "patch"]
    text: str = ""
    counterfactual: Prompt = ""
    layer: Natural = 0
    results: list[Natural] = field(default_factory=list)


@dataclass(frozen=True, config=EXACT)
class Write:
    prompt: Prompt
    tokens: Annotated[Natural, Field(ge=1)]


@dataclass(frozen=True, config=EXACT)
class Explain:
    question: Question
    methods: list[MethodName]
    remember: bool = True


@dataclass(frozen=True, config=EXACT)
class ChangeTokens:
    question: Question
    change: Change


@dataclass(frozen=True, config=EXACT)
class Compare:
    results: Annotated[list[Natural], Field(min_length=2)]


T = TypeVar("T")


def read(kind: type[T], body: bytes) -> T:
    """Read a request from JSON; refuse other bodies, and name the first fault."""
    try:
        return TypeAdapter(kind).validate_json(body)
    except ValidationError as error:
        fault = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # a union has one per type
        place = ".".join(map(str, fault["loc"])) or "the request"
        raise ValueError(f"{place}={brief(fault['input'])}: {fault['msg'].removeprefix('Value error, ')}") from None
