"""Files written elsewhere, read strictly: one that cannot be read is refused in one sentence that names the place.

Nothing that a file holds ends in another library's exception, in a hang, or in a value that fails later on: JSON that
nests without end, repeats a key, or has numbers and characters that nothing can compute with is refused here.
"""

import json
import os
import re
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isinf
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn

DEEPEST = 64  # levels of JSON: no real record has as many, and Python can recurse over them several times
DIGITS = 300  # of a whole number, which is then still a float
HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
SURROGATE = re.compile("[\ud800-\udfff]")

_short = Repr()
_short.maxstring = _short.maxother = 80
_short.maxlong = 40


def brief(value: Any) -> str:
    """The value as it is shown in an error: on one line, and cut short however large it is."""
    return " ".join(_short.repr(value).split("\n"))


def regular_file(path: str | os.PathLike[str], missing: str = "") -> Path:
    """The path, if a regular file is there: a pipe or a device could keep its reader waiting, or never end.

    ``missing`` is what to say where nothing is there.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(missing or f"there is no file {path}") from None
        raise OSError(f"{os.fspath(path)!r} cannot be opened ({_reason(error)})") from None
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is {_kind(mode)}: give a regular file")
    return Path(path)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_bytes(path: str | os.PathLike[str], missing: str = "") -> bytes:
    """What a regular file holds."""
    try:
        return regular_file(path, missing).read_bytes()
    except PermissionError:
        raise PermissionError(f"{path} cannot be read: permission denied") from None


def read_text(path: str | os.PathLike[str], missing: str = "") -> str:
    """What a file of UTF-8 holds, without the mark that some editors put before it."""
    return decoded(read_bytes(path, missing), str(path))


def decoded(raw: bytes, path: str) -> str:
    """Bytes as text; another encoding is named where it is recognised, with the line where it shows."""
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError(f"{path}, line 1, is not UTF-8 but UTF-16: {_convert('UTF-16')}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + (len(BOM_UTF8) if raw.startswith(BOM_UTF8) else 0)
        line = raw.count(b"\n", 0, at) + 1
        likely = "UTF-16" if b"\0" in raw else "Latin-1"
        raise ValueError(
            f"{path}, line {line}, is not UTF-8 (byte 0x{raw[at]:02x}), perhaps {likely}: {_convert(likely)}"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {line}, has a NUL byte, perhaps as UTF-16: {_convert('UTF-16')}")
    return text


def _convert(encoding: str) -> str:
    return f"convert it, as by iconv -f {encoding.upper()} -t UTF-8"


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, counted from 1. Not `splitlines`, which also breaks at characters within a text."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


class NotJSON(ValueError):
    """Text that is not JSON; ``position`` is where it stops being."""

    def __init__(self, reason: str, position: int, column: int) -> None:
        super().__init__(f"{reason} at character {column}")
        self.reason, self.position = reason, position


def parse_json(text: str, *, numbers: bool = True, halves: bool = False) -> Any:
    """The value of a JSON text, which may nest, repeat and overflow as little as a reader can stand.

    Args:
        text: the JSON.
        numbers: refuse NaN, Infinity and what overflows to it, which are not JSON although Python writes them.
        halves: accept half of a surrogate pair, which no UTF-8 file can hold.
    """
    parse = {"parse_constant": _not_finite, "parse_float": _finite} if numbers else {}
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_int=_whole, **parse)
    except json.JSONDecodeError as error:
        raise NotJSON(error.msg, error.pos, error.colno) from None
    except RecursionError:
        raise ValueError(f"it nests more than {DEEPEST} levels deep") from None
    if text.count("[") + text.count("{") > DEEPEST or (not halves and HALF_PAIR.search(text)):
        _check_nested(value, halves)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        (repeated, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {brief(repeated)} is there twice")
    return members


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"the number {digits[:20]}… has {len(digits)} digits, more than {DIGITS}")
    return int(digits)


def _finite(digits: str) -> float:
    if isinf(float(digits)):
        raise ValueError(f"the number {brief(digits)[1:-1]} is too large")
    return float(digits)


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _check_nested(value: Any, halves: bool) -> None:
    """Level by level, so that the depth can be anything."""
    level = [value]
    for _ in range(DEEPEST + 1):
        texts = (item for item in level if isinstance(item, str))
        if not halves and (half := next(filter(SURROGATE.search, texts), "")):
            raise ValueError(f"the text {brief(half)} has half of a surrogate pair, which is not a character")
        level = [inner for item in level for inner in _within(item)]
        if not level:
            return
    raise ValueError(f"it nests more than {DEEPEST} levels deep")


def _within(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def check_utf8(what: str, text: str) -> None:
    """Refuse text that no file can hold: half of a surrogate pair, as Python makes of bytes it cannot decode."""
    if half := SURROGATE.search(text):
        raise ValueError(f"{what} is not valid UTF-8 at character {half.start()}")
