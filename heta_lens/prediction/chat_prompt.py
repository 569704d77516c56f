"""A chat as a prompt: messages in the model's own chat template, and which message each token belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heta_lens._util.caller_warnings import warn
from heta_lens._util.chat_messages import TEMPLATE, Messages
from heta_lens._util.file_reading import brief
from heta_lens._util.text_spans import Span, joined, owners, visible
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.chat_template import Message, chat_template, checked_messages
from heta_lens.model.tokenizer import TokenizerWrapper, locate
from heta_lens.prediction.message_places import REPLY, Place, message_places


@dataclass(frozen=True)
class ChatMessage:
    """A message as the template wrote it: what it says, and where, in characters of the chat's text and in tokens.

    ``characters`` are the spans of its content (several, with tool calls) and ``positions`` the tokens that write them.
    ``whole`` and ``whole_positions`` include the message's header and end marker.
    """

    role: str
    content: str
    characters: tuple[Span, ...]
    positions: tuple[int, ...]
    whole: Span
    whole_positions: tuple[int, ...]


@dataclass(frozen=True, eq=False, repr=False)
class ChatPrompt:
    """Messages as the tokens that a model reads, ready for ``model.run_with_cache(chat.tokens)``.

    ``text`` is what the chat template made of the messages, ``offsets`` are each token's characters in it. Pass the
    chat as ``tokens=`` to `attribute`, and the attribution knows its messages.
    """

    tokens: Int[Tensor, "1 pos"]
    text: str
    offsets: tuple[Span, ...]
    messages: tuple[ChatMessage, ...]
    tokenizer: TokenizerWrapper
    speaker: int | None = None  # the message that goes on with what follows; None if a new one begins there

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        counts = [f"{message.role} {len(message.positions)}" for message in self.messages]
        return f"ChatPrompt of {len(self)} tokens: {', '.join(counts)}, {TEMPLATE} {int(self.template.sum())}"

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The message whose content each token writes, by its index; -1 for the template's own tokens."""
        found = {position: number for number, message in enumerate(self.messages) for position in message.positions}
        return tuple(found.get(position, -1) for position in range(len(self)))

    @property
    def template(self) -> Bool[Tensor, "pos"]:
        """Which tokens the template wrote: BOS, headers, end markers, tools, the generation prompt."""
        return torch.tensor(self.owners) < 0

    @cached_property
    def roles(self) -> tuple[str | None, ...]:
        """The role of the message that each token belongs to, as content or around it; None for those of no message."""
        found = {position: message.role for message in self.messages for position in message.whole_positions}
        return tuple(found.get(position) for position in range(len(self)))

    def followed_by(self, ids: Any) -> "ChatPrompt":
        """The chat with the tokens that a model wrote after it, as the assistant's (or the continued) message.

        Special tokens among them, such as an end marker, are the template's. Of what ``model.generate(chat.tokens)``
        returns, these tokens are ``generated[:, len(chat):]``.
        """
        added = _following(ids, self)
        if not added:
            return self
        every = [*self.tokens[0].tolist(), *added]
        text, spans, kept = _continued(self, every)
        controls = self.tokenizer.special(every[kept:])
        own = [row for row, control in enumerate(controls, kept) if not control]
        before = self.messages[: self.speaker]
        message = _continued_message(self, text, spans, kept, own)
        return replace(
            self,
            tokens=torch.tensor([every], device=self.tokens.device),
            text=text,
            offsets=spans,
            messages=(*before, message, *self.messages[len(before) + 1 :]),
            speaker=len(before),
        )

    def of_context(self, text: str, spans: Sequence[Span]) -> Messages:
        """Which message each token of a context belongs to: of this chat's first tokens, which decode to ``text``."""
        length = len(spans)
        begins = [min(message.whole_positions, default=length) for message in self.messages]
        begun = max((number for number, begin in enumerate(begins) if begin < length), default=-1)
        known = len(self.messages) if length == len(self) else begun + 1
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
    """The tokens of a chat, as the model's own chat template writes it, and where every message is among them.

    Args:
        model: a TransformerLens model whose tokenizer has a chat template.
        messages: dicts with ``role`` and ``content``, and what else the template reads, such as ``tool_calls``.
        add_generation_prompt: end with the header of the assistant's answer, where the template has one.
        tools: what the model may call, as in ``tokenizer.apply_chat_template``.
        template_options: what else the template reads, such as ``enable_thinking=False``. With
            ``continue_final_message=True`` (and ``add_generation_prompt=False``), the model goes on with the last
            message.

    Example:
        chat = heta_lens.chat(model, [{"role": "user", "content": "What is the capital of France?"}])
        logits, cache = model.run_with_cache(chat.tokens, names_filter=heta_lens.names_filter)
        heta_lens.attribute(cache, tokens=chat).by_message()
    """
    checked = checked_messages(messages)
    if not all(hasattr(model, name) for name in ("cfg", "hook_dict", "tokenizer")):
        raise TypeError(f"{type(model).__name__} is not a TransformerLens model")
    continued = bool(template_options.get("continue_final_message"))
    if continued and add_generation_prompt:
        raise ValueError(
            "continue_final_message= goes on with the last message, and add_generation_prompt=True begins another: "
            "give add_generation_prompt=False too"
        )
    adapter = ModelAdapter(model)
    options = {**template_options, "add_generation_prompt": add_generation_prompt}
    template = chat_template(adapter.tokenizer, options if tools is None else {**options, "tools": tools})
    text = template.render(checked)
    ids, spans = template.encode(checked, text)
    if not ids:
        raise ValueError("this model's chat template writes nothing at all for these messages")
    if len(ids) > model.cfg.n_ctx:
        raise ValueError(f"the chat is {len(ids)} tokens long, and this model reads {model.cfg.n_ctx} at most")
    begins = spans[0].stop if ids[0] == adapter.tokenizer.bos else 0
    places = message_places(checked, template.render, text, [span.start for span in spans], begins)
    _warn_of_dropped(checked, places)
    return ChatPrompt(
        tokens=torch.tensor([ids], device=adapter.device),
        text=text,
        offsets=tuple(spans),
        messages=_messages([message["role"] for message in checked], places, text, spans),
        tokenizer=adapter.tokenizer,
        speaker=len(checked) - 1 if continued else None,
    )


# -------------------------------------------------------------------------------------------------------- refusals
def _warn_of_dropped(messages: Sequence[Message], places: Sequence[Place]) -> None:
    """Say which messages a template leaves out, as some do with system messages and roles that they do not know."""
    for number, (message, place) in enumerate(zip(messages, places, strict=True)):
        if not place.contents and ((message.get("content") or "").strip() or message.get("tool_calls")):
            warn(
                f"messages[{number}] ({message['role']}) is not read by the model: its chat template leaves it out of "
                "this chat"
            )


def _following(ids: Any, chat: ChatPrompt) -> list[int]:
    """The ids that follow a chat, as a list."""
    try:
        given = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"ids={brief(ids)} must be the ids of the tokens that follow the chat") from None
    row = given[0] if given.ndim == 2 and len(given) == 1 else given
    if row.ndim != 1 or (len(row) and (row.is_floating_point() or row.dtype == torch.bool)):
        raise ValueError(f"ids= must be the ids after one chat; got {given.dtype} of shape {tuple(given.shape)}")
    added: list[int] = row.tolist()
    if wrong := [number for number in added if number < 0]:
        raise ValueError(f"ids= has {wrong[0]}, which is no token: ids are 0 or more")
    if added[: len(chat)] == chat.tokens[0].tolist():
        raise ValueError(
            f"ids= begins with the chat's own {len(chat)} tokens: give those after it, ids[:, {len(chat)}:]"
        )
    return added


# ---------------------------------------------------------------------------------------------------------- places
def _messages(
    roles: Sequence[str], places: Sequence[Place], text: str, spans: Sequence[Span]
) -> tuple[ChatMessage, ...]:
    """The messages with their tokens: each writes one content, or else belongs to the message that it begins in."""
    owned = owners(text, spans, [place.contents for place in places])
    begins = [Span(span.start, span.start + 1) for span in spans]
    around = owners(text, begins, [[place.whole] for place in places])
    whole = [own if own >= 0 else other for own, other in zip(owned, around, strict=True)]
    positions, whole_positions = (_positions(found, len(places)) for found in (owned, whole))
    return tuple(
        ChatMessage(
            role=role,
            content=_said(text, place.contents),
            characters=place.contents,
            positions=positions[number],
            whole=place.whole,
            whole_positions=whole_positions[number],
        )
        for number, (role, place) in enumerate(zip(roles, places, strict=True))
    )


def _positions(found: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The positions that belong to each of so many owners."""
    positions: list[list[int]] = [[] for _ in range(count + 1)]
    for position, owner in enumerate(found):
        positions[owner].append(position)  # of no owner, -1: in the last list
    return [tuple(own) for own in positions[:count]]


def _continued(chat: ChatPrompt, ids: Sequence[int]) -> tuple[str, tuple[Span, ...], int]:
    """The text and offsets of a chat with more tokens, and how many of its own keep theirs.

    Those that write only a part of a character do not, once others complete it.
    """
    (before, old), (after, new) = (locate(chat.tokenizer.decode, some) for some in (ids[: len(chat)], ids))
    kept = len(chat) if after.startswith(before) and old[-1] == new[len(chat) - 1] else old.index(old[-1])
    start = new[kept].start
    shift = (chat.offsets[kept].start if kept < len(chat) else len(chat.text)) - start
    moved = [Span(span.start + shift, span.stop + shift) for span in new[kept:]]
    return chat.text[: start + shift] + after[start:], (*chat.offsets[:kept], *moved), kept


def _continued_message(
    chat: ChatPrompt, text: str, spans: Sequence[Span], kept: int, own: Sequence[int]
) -> ChatMessage:
    """The message that goes on with the tokens ``own``; a new one, which the generation prompt is the header of."""
    if chat.speaker is None:
        end = max(message.whole.stop for message in chat.messages)
        header = [row for row, role in enumerate(chat.roles) if role is None and chat.offsets[row].start >= end]
        message = ChatMessage(REPLY, "", (), (), Span(end, end), tuple(header))
    else:
        message = chat.messages[chat.speaker]
    before = [Span(start, min(stop, spans[kept].start)) for start, stop in message.characters]
    characters = joined([*before, *(spans[row] for row in own)])
    return ChatMessage(
        role=message.role,
        content=_said(text, characters),
        characters=characters,
        positions=(*(row for row in message.positions if row < kept), *own),
        whole=Span(message.whole.start, len(text)),
        whole_positions=(*(row for row in message.whole_positions if row < kept), *range(kept, len(spans))),
    )


def _said(text: str, characters: Sequence[Span]) -> str:
    return "\n".join(text[slice(*span)] for span in characters)


def _decoded_places(chat: ChatPrompt, known: int, text: str, spans: Sequence[Span]) -> Int[Tensor, "span 3"]:
    """The contents of the messages in a context, which may decode to other text than the chat's."""
    same, rows = chat.text.startswith(text), []
    for number, message in enumerate(chat.messages[:known]):
        for span in message.characters:
            if same:
                place = Span(span.start, min(span.stop, len(text)))
            else:
                own = [spans[at] for at in message.positions if at < len(spans) and _meet(chat.offsets[at], span)]
                place = visible(text, Span(own[0].start, own[-1].stop)) if own else Span(0, 0)
            rows += [(number, *place)] if place.start < place.stop else []
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def _meet(one: Span, other: Span) -> bool:
    return one.start < other.stop and other.start < one.stop
