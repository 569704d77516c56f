"""Ways to damage a file, each drawn from a seed."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

ODD: list[Any] = [
    5, -1, 1.5, True, None, "", "x", [], {}, [5], [[]], {"a": 1}, "\ud83d", 10**299, -(10**299), float("nan"),
    float("inf"), "long " * 3000, [None] * 50, "[" * 2000, "\0", "é\u2028", [[1, 2, 3]], [[-5, 99]],
]  # fmt: skip


def flipped(draw: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.randint(1, 8)):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def cut(draw: random.Random, raw: bytes) -> bytes:
    return raw[: draw.randint(0, len(raw))]


def encoded(draw: random.Random, raw: bytes) -> bytes:
    text = raw.decode("latin-1")
    return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"]))


def inserted(draw: random.Random, raw: bytes) -> bytes:
    at, what = draw.randint(0, len(raw)), draw.choice(
        [b"\0", b"\xff", b"\xe9", b'"', b"{", b"}", b"[", b"]", b",", b"\n", b"\r", b"[" * 3000, b"9" * 5000, b"1e999",
         b"NaN", b"\\ud83d", b"\xed\xa0\x80", b"x" * 140_000, b'{"a":' * 2000, b"\xef\xbb\xbf", b"-Infinity"]
    )  # fmt: skip
    return raw[:at] + what + raw[at:]


def repeated(draw: random.Random, raw: bytes) -> bytes:
    start, stop = sorted(draw.randint(0, len(raw)) for _ in range(2))
    return raw[:stop] + raw[start:stop] + raw[stop:]


BYTES: list[Callable[[random.Random, bytes], bytes]] = [flipped, cut, encoded, inserted, repeated]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key into it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def changed(draw: random.Random, value: Any) -> Any:
    """The value with one field of another type, missing, or added."""
    found = copy.deepcopy(value)
    holder, key = draw.choice(places(found) or [([found], 0)])
    way = draw.randrange(8)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder["unknown"] = draw.choice(ODD)
    elif way == 2:
        other, place = draw.choice(places(found))
        holder[key] = copy.deepcopy(other[place])
    else:
        holder[key] = draw.choice(ODD)
    return found


def as_json(draw: random.Random, value: Any) -> bytes:
    """JSON of it, at times with a key twice."""
    text = json.dumps(value)
    return (text.replace('{"', '{"id": 1, "id": 2, "', 1) if draw.random() < 0.05 else text).encode("utf-8")
