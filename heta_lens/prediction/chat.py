"""Chats as prompts: messages in the model's chat template, and the tokens of each message.

Messages are located by rendering the template again with stand-ins in place of the values. A search would not do: a
value may repeat, hold words of the template, or be changed by the template (stripped, say). The text around a stand-in
must also stand around the value, to the last character.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count, pairwise
from os.path import commonprefix
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heta_lens._util.python import warn
from heta_lens._util.text import Span, joined, owners, visible_span
from heta_lens.attribution import TEMPLATE, Messages
from heta_lens.model.adapter import ModelAdapter, check_decoder
from heta_lens.model.tokenizer import (
    Message,
    TokenizerWrapper,
    chat_template,
    check_length,
    checked_messages,
    encode,
    locate,
    refuse_unknown,
)

Value: TypeAlias = "str | Mapping[str, Any]"
Path: TypeAlias = tuple[str | int, ...]  # keys and indices that lead to a value of a message
Slot: TypeAlias = tuple[int, Path]  # a message's number, and the path to a value
RenderChat: TypeAlias = Callable[[Sequence[Message]], str]  # raises a ValueError for a refused chat

PromptLike: TypeAlias = "str | Sequence[Message] | ChatPrompt | Tensor"  # a text, messages, a chat, or ids

TEXTS = ("content", "reasoning_content", "thinking", "reasoning")  # values that templates write unchanged
REPLY = "assistant"


def stand_in(value: Value, rendered: str) -> tuple[Value, str]:
    """Return a value made of a word missing from the text, and the value as templates write values."""
    word = next(word for number in count() if (word := f"qzheta{number}jx") not in rendered)
    return (word, word) if isinstance(value, str) else ({word: word}, json.dumps({word: word}))


def located(value: Value, rendered: str, render: Callable[[Value], str]) -> list[Span] | None:
    """Locate a value by rendering a stand-in instead; None if the place is unknown.

    A value that the template leaves out has no span.
    """
    instead, written = stand_in(value, rendered)
    try:
        probe = render(instead)
    except ValueError:
        return None
    found = _filled(rendered, probe, written)
    if not (value.strip() if isinstance(value, str) else value):  # a template may write other text, or no text, for it
        return [span for span in found or () if not rendered[slice(*span)].strip()]
    if found is not None:
        return found
    # The template writes other things too because of the value: it is around the changed stretch, or in it.
    both_ways = ([rendered, probe], [rendered[::-1], probe[::-1]])
    start, end = (len(commonprefix(texts)) for texts in both_ways)  # noqa: RUF071 (of characters, not of folders)
    changed = Span(start, len(rendered) - min(end, min(len(rendered), len(probe)) - start))
    if not isinstance(value, str):
        return [changed]
    return next(([span] for span in _near(rendered, value, changed)), None)


def _filled(rendered: str, probe: str, written: str) -> list[Span] | None:
    """Locate a value whose stand-in is ``written`` in ``probe``; None if ``probe`` differs outside the stand-in."""
    first, *others = probe.split(written)
    if not others:
        return [] if probe == rendered else None
    length = (len(rendered) - len(first) - sum(map(len, others))) // len(others)
    value = rendered[len(first) :][: max(length, 0)]
    if length < 0 or value.join([first, *others]) != rendered:
        return None
    stops = accumulate(len(piece) + length for piece in [first, *others[:-1]])
    return [Span(stop - length, stop) for stop in stops]


def _near(rendered: str, value: str, stretch: Span) -> Iterator[Span]:
    """Yield the places of the value, stripped or not, that cover the stretch, or else the only place inside."""
    for form in dict.fromkeys((value, value.strip())):
        starts = [match.start() for match in re.finditer(f"(?={re.escape(form)})", rendered)]
        spans = [Span(start, start + len(form)) for start in starts]
        yield from (span for span in spans if span.start <= stretch.start and stretch.stop <= span.stop)
        inside = [span for span in spans if stretch.start <= span.start and span.stop <= stretch.stop]
        yield from inside if len(inside) == 1 else ()


def message_contents(messages: Sequence[Message], render: RenderChat, rendered: str) -> list[tuple[Span, ...]]:
    """Locate the content of each message in ``rendered``; refuse messages that cannot be located."""
    found: list[list[Span]] = [[] for _ in messages]
    for slot, value in slots(messages).items():
        number, path = slot
        spans = located(value, rendered, lambda instead, slot=slot: render(replaced(messages, slot, instead)))
        if spans is None:
            raise ValueError(
                f"messages[{number}] ({messages[number]['role']}): its {path[-1]} cannot be located in what this "
                "model's chat template writes, which changes it, or writes other things because of it"
            )
        found[number] += spans
    order = sorted((span, number) for number, own in enumerate(found) for span in own if span.start < span.stop)
    for (one, first), (other, second) in pairwise(order):
        if other.start < one.stop:
            both = " and ".join(f"messages[{at}] ({messages[at]['role']})" for at in sorted((first, second)))
            raise ValueError(f"{both} cannot be told apart in what this model's chat template makes of them")
    return [joined(sorted(own)) for own in found]


def slots(messages: Sequence[Message]) -> dict[Slot, Value]:
    """List the values that come from the messages and not from the template."""
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


def replaced(messages: Sequence[Message], slot: Slot, value: Value) -> list[Message]:
    """Copy the messages, with another value in a slot."""
    changed: Any = [deepcopy(dict(message)) for message in messages]
    number, path = slot
    inner = changed[number]
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


@dataclass(frozen=True)
class ChatMessage:
    """A message in a rendered chat.

    ``characters`` are the spans of the content in the chat's text (several, with tool calls) and ``positions`` the
    tokens of the content.
    """

    role: str
    content: str
    characters: tuple[Span, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, eq=False, repr=False)
class ChatPrompt:
    """Messages as tokens of a model, ready for ``model.run_with_cache(chat.tokens)``.

    ``text`` is the chat template's rendering of the messages, ``offsets`` are each token's characters in the text. Pass
    the chat as ``tokens=`` to `attribute`, and the attribution knows its messages.
    """

    tokens: Int[Tensor, "1 pos"]
    text: str
    offsets: tuple[Span, ...]
    messages: tuple[ChatMessage, ...]
    tokenizer: TokenizerWrapper
    speaker: int | None = None  # the message that following tokens continue; None if a new message begins

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        counts = [f"{message.role} {len(message.positions)}" for message in self.messages]
        return f"ChatPrompt of {len(self)} tokens: {', '.join(counts)}, {TEMPLATE} {int(self.template.sum())}"

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The index of the message whose content a token writes, for each token; -1 for tokens of the template."""
        found = {position: number for number, message in enumerate(self.messages) for position in message.positions}
        return tuple(found.get(position, -1) for position in range(len(self)))

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """The tokens of the template: BOS, headers, end markers, tools, the generation prompt."""
        return torch.tensor(self.owners) < 0

    def followed_by(self, ids: Any) -> "ChatPrompt":
        """Return the chat with a model's answer, as the assistant's (or the continued) message.

        Special tokens in the answer, such as an end marker, count as tokens of the template. After
        ``generated = model.generate(chat.tokens)``, the answer is ``generated[:, len(chat):]``.
        """
        given, before = torch.as_tensor(ids), self.tokens[0].tolist()
        added = given[0] if given.ndim == 2 and len(given) == 1 else given
        if added.ndim != 1:
            raise ValueError(f"ids= must be the ids after one chat, not of shape {tuple(given.shape)}")
        if not len(added):
            return self
        if added[: len(self)].tolist() == before:
            raise ValueError(
                f"ids= begins with the chat's own {len(self)} tokens: give those after it, ids[:, {len(self)}:]"
            )
        every = [*before, *added.tolist()]
        written, spans = locate(self.tokenizer.decode, every)
        start = spans[len(self)].start
        shift, text = len(self.text) - start, self.text + written[start:]
        moved = [Span(span.start + shift, span.stop + shift) for span in spans[len(self) :]]
        offsets, controls = (*self.offsets, *moved), self.tokenizer.special(every)
        own = [position for position in range(len(self), len(every)) if not controls[position]]
        number = len(self.messages) if self.speaker is None else self.speaker
        message = ChatMessage(REPLY, "", (), ()) if self.speaker is None else self.messages[number]
        characters = joined([*message.characters, *(offsets[position] for position in own)])
        answer = ChatMessage(message.role, _content(text, characters), characters, (*message.positions, *own))
        return replace(
            self,
            tokens=torch.tensor([every], device=self.tokens.device),
            text=text,
            offsets=offsets,
            messages=(*self.messages[:number], answer, *self.messages[number + 1 :]),
            speaker=number,
        )

    def of_context(self, text: str, spans: Sequence[Span]) -> Messages:
        """Return the messages of a context: the chat's first tokens, which decode to ``text``."""
        length = len(spans)
        known = len(self.messages) if length == len(self) else max(self.owners[:length], default=-1) + 1
        return Messages(
            roles=tuple(message.role for message in self.messages[:known]),
            places=_decoded_places(self, known, text, spans),
            owners=torch.tensor(self.owners[:length]),
        )


def chat(
    model: Any,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    **template_options: Any,
) -> ChatPrompt:
    """Write a chat in the model's chat template, and return its tokens with the place of every message.

    Args:
        model: a TransformerLens model whose tokenizer has a chat template.
        messages: dicts with ``role`` and ``content``, and further entries of the template, such as ``tool_calls``.
        add_generation_prompt: end with the header of the assistant's answer, if the template has such a header.
        tools: functions that the model may call, as in ``tokenizer.apply_chat_template``.
        template_options: further options of the template, such as ``enable_thinking=False``. With
            ``continue_final_message=True`` (and ``add_generation_prompt=False``), the model continues the last message.

    Example:
        >>> model.tokenizer.chat_template = "{% for each in messages %}{{ each['content'] }} {% endfor %}Answer: in the"
        >>> texts = {"system": "Leo put the key in the box.", "user": "Question: Where did Leo put the key?"}
        >>> chat = heta_lens.chat(model, [{"role": role, "content": text} for role, text in texts.items()])
        >>> logits, cache = model.run_with_cache(chat.tokens)
        >>> [message.role for message in heta_lens.attribute(cache, tokens=chat, method="fast").by_message()]
        ['system', 'user', 'template']
    """
    checked = checked_messages(messages)
    check_decoder(model)
    adapter = ModelAdapter(model)
    options = {**template_options, "add_generation_prompt": add_generation_prompt}
    template = chat_template(adapter.tokenizer, options if tools is None else {**options, "tools": tools})
    text = template.render(checked)
    ids, spans = template.encode(checked, text)
    check_length(model, len(ids), "the chat is")
    contents, found = message_contents(checked, template.render, text), []
    owned = owners(text, spans, contents)
    for number, (message, characters) in enumerate(zip(checked, contents, strict=True)):
        positions = tuple(position for position, owner in enumerate(owned) if owner == number)
        found.append(ChatMessage(message["role"], _content(text, characters), characters, positions))
        if not characters and ((message.get("content") or "").strip() or message.get("tool_calls")):
            warn(
                f"messages[{number}] ({message['role']}) is not read by the model: its chat template leaves it out of "
                "this chat"
            )
    return ChatPrompt(
        tokens=torch.tensor([ids], device=adapter.device),
        text=text,
        offsets=tuple(spans),
        messages=tuple(found),
        tokenizer=adapter.tokenizer,
        speaker=len(checked) - 1 if template_options.get("continue_final_message") else None,
    )


def read_prompt(model: Any, prompt: PromptLike) -> "Int[Tensor, '1 pos'] | ChatPrompt":
    """Return the tokens of a prompt, or the chat; refuse words without a token."""
    if isinstance(prompt, str):
        return encode(model, prompt)
    if isinstance(prompt, ChatPrompt):
        return prompt
    if isinstance(prompt, Tensor):
        if prompt.is_floating_point() or prompt.ndim > 2 or prompt.numel() != prompt.shape[-1]:
            raise ValueError(f"prompt must be the ids of one prompt, not {prompt.dtype} of shape {tuple(prompt.shape)}")
        return prompt.reshape(1, -1)
    messages = chat(model, prompt)
    refuse_unknown(model, messages.text)
    return messages


def _content(text: str, characters: Sequence[Span]) -> str:
    return "\n".join(text[slice(*span)] for span in characters)


def _decoded_places(chat: ChatPrompt, known: int, text: str, spans: Sequence[Span]) -> Int[Tensor, "span 3"]:
    """Return the contents' places in a context, which may decode to a text that differs from the chat's."""
    same, rows = chat.text.startswith(text), []
    for number, message in enumerate(chat.messages[:known]):
        for start, stop in message.characters:
            own = [at for at in message.positions if at < len(spans)]
            own = [at for at in own if chat.offsets[at].start < stop and start < chat.offsets[at].stop]
            if same:
                place = Span(start, min(stop, len(text)))
            else:
                place = visible_span(text, Span(spans[own[0]].start, spans[own[-1]].stop)) if own else Span(0, 0)
            rows += [(number, *place)] if place.start < place.stop else []
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
