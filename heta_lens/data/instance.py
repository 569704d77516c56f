"""Instance: a prompt to explain, with what is known about it; read from and written to lines of JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import Any

from heta_lens._util.files import NotJSON, brief, check_utf8, numbered_lines, parse_json, read_text, write_atomically
from heta_lens._util.options import check_choice, hint, is_whole
from heta_lens._util.text import Span, visible_span
from heta_lens.model.tokenizer import checked_messages

SPANS = ("support", "gold", "distractor", "question")
OTHERS = ("counterfactual", "paraphrase")
FORMER_FIELDS = {"twin": "counterfactual"}  # of files that earlier versions wrote


@dataclass(frozen=True)
class Instance:
    """A text up to the place of its answer, with spans of characters for its parts.

    ``support`` tells the answer, by its ``gold`` words; ``distractor`` tells something else; ``question`` asks. All may
    be unknown, which is an empty tuple.
    """

    id: str
    text: str
    answer: str | None
    """The expected continuation, with the blank before it. None: the model's own next token."""
    template: str = ""
    """Prompts of one template are not independent: statistics resample whole templates."""
    support: tuple[Span, ...] = ()
    gold: tuple[Span, ...] = ()
    distractor: tuple[Span, ...] = ()
    question: tuple[Span, ...] = ()
    choices: tuple[str, ...] = ()
    """The possible answers, where known."""
    counterfactual: "Instance | None" = None
    """As many tokens, with other gold words that tell another answer."""
    paraphrase: "Instance | None" = None
    """The same content in other words."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """Of a chat: what the model's own template makes the prompt of. ``text`` is then only to be read by people."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", self._messages())
        _check_text("the id of an instance", self.id)
        _check_text(f"the text of instance {brief(self.id)}", self.text)
        if self.answer is not None:
            _check_text(f"the answer of instance {brief(self.id)}", self.answer)
        if not isinstance(self.template, str):
            raise TypeError(f"instance {brief(self.id)}: template={brief(self.template)} must be text")
        check_utf8(f"the template of instance {brief(self.id)}", self.template)
        for name in SPANS:
            object.__setattr__(self, name, self._spans(name))
        object.__setattr__(self, "choices", self._choices())
        for name in OTHERS:
            other = getattr(self, name)
            if not isinstance(other, Instance | None):
                raise TypeError(f"instance {brief(self.id)}: its {name}, {brief(other)}, must be an instance too")

    def words(self, name: str) -> list[str]:
        """The texts of the spans of this name."""
        check_choice("name", name, SPANS)
        return [self.text[start:stop] for start, stop in getattr(self, name)]

    def _spans(self, name: str) -> tuple[Span, ...]:
        """In the order of the text, each once."""
        given = getattr(self, name)
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"instance {brief(self.id)}: {name}={brief(given)} must be several pairs (start, stop)")
        return tuple(sorted({self._span(name, pair) for pair in given}))

    def _span(self, name: str, given: Any) -> Span:
        pair = given if isinstance(given, tuple | list) else ()
        if len(pair) != 2 or not all(is_whole(end) for end in pair):
            raise TypeError(
                f"instance {brief(self.id)}: {name} holds {brief(given)}, "
                "which is not a pair of whole numbers (start, stop)"
            )
        span = Span(*map(index, pair))
        if not 0 <= span.start < span.stop <= len(self.text):
            raise ValueError(
                f"instance {brief(self.id)}: the span {tuple(span)} of {name} is not within its text, "
                f"which has {len(self.text)} characters"
            )
        shown = visible_span(self.text, span)
        if shown.start == shown.stop:
            raise ValueError(
                f"instance {brief(self.id)}: the span {tuple(span)} of {name} holds nothing but white space"
            )
        return span

    def _messages(self) -> tuple[Mapping[str, Any], ...]:
        if not self.messages:
            return ()
        try:
            messages = tuple(checked_messages(self.messages))
        except (TypeError, ValueError) as error:
            raise type(error)(f"instance {brief(self.id)}: {error}") from None
        if known := [name for name in (*SPANS, *OTHERS) if getattr(self, name)]:
            raise ValueError(
                f"instance {brief(self.id)} has messages and {', '.join(known)}: where the characters of a chat are "
                "depends on its template, so that only texts can have them"
            )
        return messages

    def _choices(self) -> tuple[str, ...]:
        if isinstance(self.choices, str) or not isinstance(self.choices, Iterable):
            raise TypeError(f"instance {brief(self.id)}: choices={brief(self.choices)} must be several texts")
        choices = tuple(self.choices)
        for choice in choices:
            _check_text(f"a choice of instance {brief(self.id)}", choice)
        if choices and self.answer is not None and self.answer not in choices:
            raise ValueError(
                f"instance {brief(self.id)}: the answer {brief(self.answer)} is none of its choices, "
                f"{', '.join(map(brief, choices))}"
            )
        return choices


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {brief(value)}, and must be text")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    check_utf8(what, value)


def instance_of(record: Mapping[str, Any]) -> Instance:
    """An instance from JSON, where null means absent; unknown keys are refused."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{brief(record)} is not an instance: it must be an object with id, text and answer")
    known = [field.name for field in fields(Instance)]
    record = {FORMER_FIELDS.get(name, name): value for name, value in record.items()}
    for name in record:
        if name not in known:
            raise ValueError(f"an instance has no field {brief(name)}{hint(name, known)}; it has {', '.join(known)}")
    if missing := [name for name in ("id", "text", "answer") if name not in record]:
        raise ValueError(f"an instance needs {', '.join(missing)}")
    given: dict[str, Any] = {
        name: value for name, value in record.items() if value is not None or name in ("id", "text", "answer")
    }
    given |= {name: spans_of(given[name]) for name in SPANS if name in given}
    given |= {name: instance_of(given[name]) for name in OTHERS if name in given}
    given |= {name: tuple(given[name]) for name in ("choices", "messages") if isinstance(given.get(name), list)}
    return Instance(**given)


def spans_of(pairs: Any) -> Any:
    """Pairs of JSON as spans; anything else is left as it is, for the instance to refuse."""
    if not isinstance(pairs, list | tuple):
        return pairs
    return tuple(Span(*pair) if isinstance(pair, list | tuple) and len(pair) == 2 else pair for pair in pairs)


def record_of(instance: Instance) -> dict[str, Any]:
    """The instance as JSON can hold it, without unknown parts."""
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {name: _plain(value) for name, value in values.items() if name == "answer" or value not in (None, (), "")}


def _plain(value: Any) -> Any:
    if isinstance(value, Instance):
        return record_of(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def read_jsonl(path: str | Path) -> Iterator[Instance]:
    """The instances of a file, one per line; a wrong line is refused by its number."""
    text = read_text(path, f"there is no file {path}: give one with an instance per line, as write_jsonl makes it")
    lines, first = [*numbered_lines(text)], dict[str, int]()
    for at, (number, line) in enumerate(lines):
        try:
            instance = instance_of(_object(line))
            if instance.id in first:
                raise ValueError(f"its id {brief(instance.id)} is that of line {first[instance.id]} too")
        except (ValueError, TypeError) as error:
            others = sum(not _is_instance(line) for _, line in lines[at + 1 :])
            more = f" ({others} of the lines after it are wrong too)" if others else ""
            raise ValueError(f"{path}, line {number}: {error}{more}") from None
        first[instance.id] = number
        yield instance


def _object(line: str) -> Any:
    try:
        return parse_json(line)
    except NotJSON as error:
        raise ValueError(f"not valid JSON ({error})") from None


def _is_instance(line: str) -> bool:
    try:
        instance_of(_object(line))
    except (ValueError, TypeError):
        return False
    return True


def write_jsonl(path: str | Path, instances: Iterable[Instance]) -> None:
    """Write one instance per line, in UTF-8. Nothing is written if two share an id, which could not be read back."""
    lines: dict[str, str] = {}
    for instance in instances:
        if instance.id in lines:
            raise ValueError(f"two instances have the id {instance.id!r}: give each its own")
        lines[instance.id] = json.dumps(record_of(instance), ensure_ascii=False)
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"there is no folder {Path(path).parent} to write {Path(path).name} in")
    write_atomically(path, "".join(line + "\n" for line in lines.values()))
