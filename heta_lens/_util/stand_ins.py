"""Where a template put the values it was given: found by rendering it again with stand-ins in their place.

A value may repeat, hold the template's own words, or be changed by the template (stripped, say), so searching for it is
not enough. What is rendered around a stand-in must be rendered around the value too, to the last character.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeAlias, TypeVar

from heta_lens._util.text_spans import Span

Key = TypeVar("Key", bound=Hashable)
Value: TypeAlias = "str | Mapping[str, Any]"
Render: TypeAlias = Callable[[Mapping[Key, Value]], str]  # with these values in place of the true ones

ENDS = ("qz", "jx", "kv", "wy", "äß", "йж")  # how a stand-in may begin and end


class StandIn(NamedTuple):
    """A word, the value that is made of it, and how a template writes that."""

    word: str
    value: Value
    written: str


def places(render: Render[Key], rendered: str, values: Mapping[Key, Value]) -> dict[Key, list[Span] | None]:
    """Where each value stands in ``rendered``: nowhere, if the template leaves it out; None, if that is not known.

    ``render`` raises a ``ValueError`` where a template refuses what it is given.
    """
    visible = {key: value for key, value in values.items() if not _is_blank(value)}
    found: dict[Key, list[Span] | None] = {**(_together(render, rendered, visible) or {})}
    for key, value in values.items():
        if key not in found:
            found[key] = _alone(render, rendered, key, value)
        if found[key] is None:
            found[key] = _among_equals(render, rendered, key, values)
    return {key: found[key] for key in values}


def stand_in(rendered: str, value: Value, name: str = "") -> StandIn:
    """A word that is not in the text, cannot overlap itself, and begins and ends with letters that the value lacks."""
    text = value if isinstance(value, str) else _json(value)
    first, last = next((ends for ends in ENDS if not {*ends} & {*text}), ENDS[0])
    words = (f"{first}heta{number or ''}n{name}{last}" for number in count())
    word = next(word for word in words if word not in rendered)
    return StandIn(word, word, word) if isinstance(value, str) else StandIn(word, {word: word}, _json({word: word}))


def filled(rendered: str, probe: str, written: str) -> list[Span] | None:
    """Where the value stands, if ``probe`` differs from ``rendered`` in nothing but what is ``written`` for it."""
    first, *others = probe.split(written)
    if not others:
        return [] if probe == rendered else None
    room = len(rendered) - len(first) - sum(map(len, others))
    length = room // len(others)
    if length < 0 or rendered[len(first) :][:length].join([first, *others]) != rendered:
        return None
    starts, at = [], 0
    for piece in [first, *others[:-1]]:
        at += len(piece)
        starts.append(at)
        at += length
    return [Span(start, start + length) for start in starts]


def changed(rendered: str, probe: str) -> Span:
    """The stretch of ``rendered`` outside which ``probe`` is the same."""
    start = shared_prefix(rendered, probe)
    room = min(len(rendered), len(probe)) - start
    return Span(start, len(rendered) - min(room, shared_prefix(rendered[::-1], probe[::-1])))


def shared_prefix(one: str, other: str) -> int:
    """How many characters both begin with."""
    shared, most = 0, min(len(one), len(other))
    while shared < most:
        middle = (shared + most + 1) // 2
        if one[shared:middle] == other[shared:middle]:
            shared = middle
        else:
            most = middle - 1
    return shared


def _together(render: Render[Key], rendered: str, values: Mapping[Key, Value]) -> dict[Key, list[Span]] | None:
    """The places of all values, from one more rendering; None, if it is not the same around them."""
    stand_ins = {key: stand_in(rendered, value, str(number)) for number, (key, value) in enumerate(values.items())}
    keys = {one.written: key for key, one in stand_ins.items()}
    try:
        probe = render({key: one.value for key, one in stand_ins.items()})
    except ValueError:
        return None
    first, *others = re.split(f"({'|'.join(map(re.escape, keys))})", probe) if keys else [probe]
    found: dict[Key, list[Span]] = {key: [] for key in values}
    at = len(first)
    for written, after in zip(others[::2], others[1::2], strict=True):
        forms = _forms(values[keys[written]])
        form = next((form for form in forms if rendered.startswith(form + after, at)), None)
        if form is None:
            return None
        found[keys[written]].append(Span(at, at + len(form)))
        at += len(form) + len(after)
    return found if at == len(rendered) and rendered.startswith(first) else None


def _alone(render: Render[Key], rendered: str, key: Key, value: Value) -> list[Span] | None:
    """The places of one value, everything else as it is."""
    replaced = stand_in(rendered, value)
    try:
        probe = render({key: replaced.value})
    except ValueError:
        return None
    found, stretch = filled(rendered, probe, replaced.written), changed(rendered, probe)
    if _is_blank(value):  # instead of which a template may write something else, or nothing at all
        return [span for span in found or () if not rendered[slice(*span)].strip()]
    if found is not None or not isinstance(value, str):
        return [stretch] if found is None else found
    return next(([span] for span in _near(rendered, value, stretch)), None)


def _among_equals(render: Render[Key], rendered: str, key: Key, values: Mapping[Key, Value]) -> list[Span] | None:
    """The place of a value that is there several times, where the template depends on that; they come in order."""
    equal = [other for other, value in values.items() if value == values[key]]
    replaced = stand_in(rendered, values[key])
    try:
        probe = render(dict.fromkeys(equal, replaced.value))
    except ValueError:
        return None
    found = filled(rendered, probe, replaced.written) or []
    return [found[equal.index(key)]] if len(found) == len(equal) > 1 else None


def _near(rendered: str, value: str, stretch: Span) -> Iterator[Span]:
    """Where the value covers the stretch that it changes; or else its only place inside."""
    for form in _forms(value):
        starts = [match.start() for match in re.finditer(f"(?={re.escape(form)})", rendered)]
        spans = [Span(start, start + len(form)) for start in starts]
        yield from (span for span in spans if span.start <= stretch.start and stretch.stop <= span.stop)
        inside = [span for span in spans if stretch.start <= span.start and span.stop <= stretch.stop]
        yield from inside if len(inside) == 1 else ()


def _forms(value: Value) -> list[str]:
    """How templates write a value: as it is, or without the white space around it; what is not text, as JSON."""
    if not isinstance(value, str):
        return [_json(value)]
    return [*dict.fromkeys((value, value.strip()))]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_blank(value: Value) -> bool:
    return not (value.strip() if isinstance(value, str) else value)
