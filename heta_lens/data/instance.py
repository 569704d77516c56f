"""Instances: prompts to explain, with known facts about the prompt; read from and written to lines of JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.files import brief, check_utf8, write_atomically
from heta_lens._util.options import check_choice, check_types, hint, is_whole
from heta_lens._util.text import Span, plain
from heta_lens.data.records import Record, each, json_lines
from heta_lens.model.tokenizer import checked_messages

Spans: TypeAlias = Sequence[Any]
"""Given as pairs ``(start, stop)`` in any order; kept as a sorted tuple of `Span`."""
SPANS = ("support", "gold", "distractor", "question", "eligible")
OTHERS = ("counterfactual", "paraphrase")


@dataclass(frozen=True)
class Instance:
    """A text up to the place of its answer, with spans of characters for its parts.

    The ``support`` tells the answer, by its ``gold`` words; the ``distractor`` tells something else; the ``question``
    asks. Metrics rank and sum the ``eligible`` tokens: the context, without question and instruction. A part that is
    not known is an empty tuple; then every token is eligible.
    """

    id: str
    text: str
    answer: str | None
    """The expected continuation, with the blank before it. None: the model's next token."""
    template: str = ""
    """Prompts of a template are not independent: statistics resample whole templates."""
    support: Spans = ()
    gold: Spans = ()
    distractor: Spans = ()
    question: Spans = ()
    eligible: Spans = ()
    choices: Sequence[str] = ()
    """The possible answers."""
    counterfactual: "Instance | None" = None
    """As many tokens, with other gold words that tell another answer."""
    paraphrase: "Instance | None" = None
    """The same content in other words."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The messages of a chat, which the model's template makes the prompt of. The model continues a last message of the
    assistant. Spans are those of ``text``, which one of the messages then says word for word."""

    def __post_init__(self) -> None:
        _check_text("the id of an instance", self.id)
        called = f"instance {brief(self.id)}"
        _check_text(f"the text of {called}", self.text)
        if self.answer is not None:
            _check_text(f"the answer of {called}", self.answer)
        check_types({"template": str}, {"template": self.template})
        for name in SPANS:
            object.__setattr__(self, name, _checked_spans(called, self.text, name, getattr(self, name)))
        object.__setattr__(self, "choices", tuple(self.choices))
        for choice in self.choices:
            _check_text(f"a choice of {called}", choice)
        if self.choices and self.answer is not None and self.answer not in self.choices:
            known = ", ".join(map(brief, self.choices))
            raise ValueError(f"{called}: the answer {brief(self.answer)} is none of its choices, {known}")
        if self.messages:
            object.__setattr__(self, "messages", tuple(checked_messages(self.messages)))
            known = [name for name in SPANS if getattr(self, name)]
            if known and not any(self.text in str(message.get("content")) for message in self.messages):
                raise ValueError(f"{called} has {', '.join(known)}, but none of its messages says its text")

    def words(self, name: str) -> list[str]:
        """Return the texts of the spans ``support``, ``gold``, ``distractor``, ``question`` or ``eligible``."""
        check_choice("name", name, SPANS)
        return [self.text[start:stop] for start, stop in getattr(self, name)]


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {brief(value)}, and must be text")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    check_utf8(what, value)


def _checked_spans(called: str, text: str, name: str, given: Any) -> tuple[Span, ...]:
    """Return the spans in the order of the text, without repetitions; refuse a span outside the text."""
    spans = set()
    for pair in given:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_whole, pair))):
            raise TypeError(f"{called}: {name} holds {brief(pair)}, not a pair of whole numbers (start, stop)")
        span = Span(*map(index, pair))
        if not 0 <= span.start < span.stop <= len(text):
            raise ValueError(
                f"{called}: the span {tuple(span)} of {name} is not within its text, which has {len(text)} characters"
            )
        spans.add(span)
    return tuple(sorted(spans))


def instance_of(record: Mapping[str, Any]) -> Instance:
    """Return an instance from JSON with null for absent fields; refuse unknown keys."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{brief(record)} is not an instance: it must be an object with id, text and answer")
    known, required = [field.name for field in fields(Instance)], ("id", "text", "answer")
    for name in record:
        if name not in known:
            raise ValueError(f"an instance has no field {brief(name)}{hint(name, known)}; it has {', '.join(known)}")
    if missing := [name for name in required if name not in record]:
        raise ValueError(f"an instance needs {', '.join(missing)}")
    given: dict[str, Any] = {name: value for name, value in record.items() if value is not None or name in required}
    given |= {name: instance_of(given[name]) for name in OTHERS if name in given}
    return Instance(**given)


def record_of(instance: Instance) -> dict[str, Any]:
    """Return the instance in types of JSON, without unknown parts."""
    values = {**vars(instance)} | {name: record_of(other) for name in OTHERS if (other := getattr(instance, name))}
    return {name: plain(value) for name, value in values.items() if name == "answer" or value not in (None, (), "")}


def read_jsonl(path: str | Path) -> Iterator[Instance]:
    """Read a file with an instance per line; refuse a wrong line by its number."""
    missing = f"there is no file {path}: give one with an instance per line, as write_jsonl makes it"
    ids: set[str] = set()

    def made(_: int, record: Record) -> Instance:
        instance = instance_of(record)
        if instance.id in ids:
            raise ValueError(f"its id {brief(instance.id)} is that of an earlier instance")
        ids.add(instance.id)
        return instance

    yield from each(json_lines(path, missing), made)


def write_jsonl(path: str | Path, instances: Iterable[Instance]) -> None:
    """Write an instance per line, in UTF-8; refuse instances with the same id, as `read_jsonl` does."""
    lines: dict[str, str] = {}
    for instance in instances:
        if instance.id in lines:
            raise ValueError(f"two instances have the id {instance.id!r}: give each its own")
        lines[instance.id] = json.dumps(record_of(instance), ensure_ascii=False)
    write_atomically(path, "".join(line + "\n" for line in lines.values()))
