"""Where a chat template put each message: its content, and the stretch with its header and end marker."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, TypeAlias

from heta_lens._util.stand_ins import Value, places, shared_prefix, stand_in
from heta_lens._util.text_spans import Span, joined
from heta_lens.model.chat_template import Message

Path: TypeAlias = tuple[str | int, ...]  # to a value of a message
Slot: TypeAlias = tuple[int, Path]  # a message, and the path to one of its values
Render: TypeAlias = Callable[..., str]  # (messages, **options)

TEXTS = ("content", "reasoning_content", "thinking", "reasoning")  # values that are written as they are
REPLY = "assistant"
ENDED = {"add_generation_prompt": False, "continue_final_message": False}


class Written(NamedTuple):
    """A value of a message, where it stands."""

    span: Span
    slot: Slot


class Place(NamedTuple):
    """A message's content (with tool calls, several spans), and its whole stretch; of characters."""

    contents: tuple[Span, ...]
    whole: Span


def message_places(
    messages: Sequence[Message], render: Render, rendered: str, starts: Sequence[int], text_begins: int = 0
) -> list[Place]:
    """Where each of the messages stands in ``rendered``, which ``render`` made of them.

    ``starts`` are where tokens begin: no header or end marker ends within a token. What comes before ``text_begins`` is
    no message's.
    """
    written = _written(messages, render, rendered)
    order = sorted((number for number, own in enumerate(written) if own), key=lambda number: written[number])
    wholes = dict.fromkeys(range(len(messages)), Span(text_begins, text_begins))
    if order:
        head = rendered[: written[order[0]][0].span.start]
        begin = _header(messages[order[0]], render, head, starts, text_begins)
        for number, end in zip(order, _ends(messages, render, rendered, written, order, starts), strict=True):
            wholes[number], begin = Span(begin, end), end
    return [Place(joined(one.span for one in own), wholes[number]) for number, own in enumerate(written)]


# --------------------------------------------------------------------------------------------------------- contents
def slots(messages: Sequence[Message]) -> dict[Slot, Value]:
    """The values that come from the messages and not from the template."""
    found: dict[Slot, Value] = {}
    for number, message in enumerate(messages):
        texts = {"content": "", **{name: value for name, value in message.items() if value is not None}}
        found |= {(number, (name,)): texts[name] for name in TEXTS if isinstance(texts.get(name), str)}
        for place, call in enumerate(message.get("tool_calls") or ()):
            inside: Path = ("function",) if isinstance(call, Mapping) and "function" in call else ()
            function = call["function"] if inside else call
            for name in ("name", "arguments"):
                value = function.get(name) if isinstance(function, Mapping) else None
                if isinstance(value, str | Mapping):
                    found[number, ("tool_calls", place, *inside, name)] = value
    return found


def replaced(messages: Sequence[Message], values: Mapping[Slot, Value]) -> list[Message]:
    """The messages with other values in these places."""
    changed: Any = [deepcopy(dict(message)) for message in messages]
    for (number, path), value in values.items():
        inner = changed[number]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
    return changed


def _written(messages: Sequence[Message], render: Render, rendered: str) -> list[list[Written]]:
    """The values of every message where they stand, in order; a message that cannot be located is refused."""
    found = places(lambda given: render(replaced(messages, given)), rendered, slots(messages))
    written: list[list[Written]] = [[] for _ in messages]
    for (number, path), spans in found.items():
        if spans is None:
            raise ValueError(
                f"messages[{number}] ({messages[number]['role']}): its {path[-1]} cannot be located in what this "
                "model's chat template writes, which changes it, or writes other things because of it"
            )
        written[number] += [Written(span, (number, path)) for span in spans]
    _check_apart(messages, written)
    return [sorted(own) for own in written]


def _check_apart(messages: Sequence[Message], written: Sequence[Sequence[Written]]) -> None:
    every = sorted(one for own in written for one in own if one.span.start < one.span.stop)
    for one, other in pairwise(every):
        if other.span.start < one.span.stop:
            numbers = sorted((one.slot[0], other.slot[0]))
            first, second = (f"messages[{number}] ({messages[number]['role']})" for number in numbers)
            raise ValueError(
                f"{first} and {second} cannot be told apart in what this model's chat template makes of them"
            )


# ---------------------------------------------------------------------------------------- headers and end markers
def _ends(
    messages: Sequence[Message],
    render: Render,
    rendered: str,
    written: Sequence[Sequence[Written]],
    order: Sequence[int],
    starts: Sequence[int],
) -> list[int]:
    """Where each message ends, in the order of the text.

    An end marker is what a chat that stops with such a message ends with. Of what stands between two contents, it is as
    much as is the same in both, in whole tokens; the rest is the next message's header.
    """
    markers: dict[Any, str] = {}  # by kind of message, since they hardly differ within one
    ends = []
    for number, following in zip_longest(order, order[1:]):
        (_, stop), slot = written[number][-1]
        kind = messages[number]["role"], slot[1], following is None
        if kind not in markers:
            markers[kind] = _marker(messages if following is None else messages[: number + 1], render, slot)
        limit = len(rendered) if following is None else written[following][0].span.start
        end = stop + shared_prefix(markers[kind], rendered[stop:limit])
        ends.append(end if end == limit else max(stop, _snapped(end, starts)))
    return ends


def _marker(messages: Sequence[Message], render: Render, slot: Slot) -> str:
    """What stands after a value if no message follows; nothing, where the template refuses that or drops the value."""
    instead = stand_in("", slots(messages)[slot])
    try:
        text = render(replaced(messages, {slot: instead.value}), **ENDED)
    except ValueError:
        return ""
    _, there, after = text.rpartition(instead.written if instead.written in text else instead.word)
    return after if there else ""


def _header(first: Message, render: Render, head: str, starts: Sequence[int], text_begins: int) -> int:
    """Where the first message's header begins, in the ``head`` of the text that ends with it.

    What comes before is written by the template itself: BOS, a system prompt, tools. The header is what stands before
    such a message later in a chat too.
    """
    word = stand_in(head, "").word
    short = [{**first, "content": "q"}, {"role": REPLY, "content": "q"}]
    try:
        ended, longer = render(short, **ENDED), render([*short, {**first, "content": word}], **ENDED)
    except ValueError:
        return text_begins
    before = longer.partition(word)[0]
    header = before[shared_prefix(ended, before) :]
    begin = _snapped(len(head) - len(header), starts)
    return begin if head.endswith(header) and begin >= text_begins else text_begins


def _snapped(place: int, starts: Sequence[int]) -> int:
    """The last place up to here where a token begins."""
    return starts[max(0, bisect_right(starts, place) - 1)]
