"""Strict readers of files from elsewhere, and writers that never lose the previous content of a file.

An unreadable file is refused in one sentence with the place of the fault.
"""

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from errno import EACCES
from math import isinf
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any, NoReturn

HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
SURROGATE = re.compile("[\ud800-\udfff]")

_short = Repr()
_short.maxstring = _short.maxother = 80
_short.maxlong = 40


def brief(value: Any) -> str:
    """Return a short form of a value for errors, on one line."""
    return " ".join(_short.repr(value).split("\n"))


# ------------------------------------------------------------------------------------------------------------ reading
def regular_file(path: str | PathLike[str], missing: str = "") -> Path:
    """Return the path of a regular file; refuse pipes and devices, which could keep a reader waiting.

    ``missing`` is the message if nothing is at the path.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(missing or f"there is no file {path}") from None
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a pipe or device'}: give a regular file")
    return Path(path)


def read_text(path: str | PathLike[str], missing: str = "") -> str:
    """Read a file of UTF-8, without a byte order mark."""
    return decoded(regular_file(path, missing).read_bytes(), str(path))


def decoded(raw: bytes, path: str) -> str:
    """Decode UTF-8; refuse other encodings with the likely encoding and the line of the fault."""
    text = ""
    try:
        text, at = raw.decode("utf-8-sig"), raw.find(b"\0")
    except UnicodeDecodeError as error:
        at = error.start
    if at >= 0:
        line, likely = raw.count(b"\n", 0, at) + 1, "UTF-16" if b"\0" in raw else "Latin-1"
        way_out = f"convert it, as by iconv -f {likely.upper()} -t UTF-8"
        raise ValueError(f"{path}, line {line}, is not UTF-8 (byte 0x{raw[at]:02x}), perhaps {likely}: {way_out}")
    return text


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines that are not blank, with numbers from 1; `splitlines` would also break inside a text."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def parse_json(text: str) -> Any:
    """Parse JSON; refuse values with which later code would fail, such as NaN, which Python reads and writes."""
    try:
        value = json.loads(
            text, object_pairs_hook=_distinct, parse_int=_whole, parse_float=_finite, parse_constant=_not_finite
        )
        if HALF_PAIR.search(text) and SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it has half of a surrogate pair, which is not a character")
    except RecursionError:
        raise ValueError("it nests too many levels deep") from None
    return value


def invalid_json(place: str, error: json.JSONDecodeError, line: int = 1) -> ValueError:
    """Return the error of text that begins at a line of a place."""
    where = f"{place}, line {line + error.lineno - 1}"
    return ValueError(f"{where}, is not valid JSON: {error.msg} at character {error.colno}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the key {brief(name)} is there twice")
        members[name] = value
    return members


def _finite(digits: str) -> float:
    if isinf(float(digits)):
        raise ValueError(f"the number {brief(digits)[1:-1]} is too large")
    return float(digits)


def _whole(digits: str) -> int:
    _finite(digits)  # which later code may make of it
    return int(digits)


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def check_utf8(name: str, text: str) -> None:
    """Refuse text with half of a surrogate pair, which no file can hold."""
    if half := SURROGATE.search(text):
        raise ValueError(f"{name} is not valid UTF-8 at character {half.start()}")


# ------------------------------------------------------------------------------------------------------------ writing
VIEWS = {".html", ".htm", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".tex", ".csv", ".json", ".jsonl", ".txt"}


def check_no_view(path: str | PathLike[str], instead: str) -> None:
    """Refuse the name of a picture, a page or a table for a file of tensors; ``instead`` writes such files."""
    if Path(path).suffix.lower() in VIEWS:
        name = Path(path).name
        raise ValueError(f"{name} would hold tensors: name it .safetensors, or write what it shows by {instead}")


def write_atomically(path: str | PathLike[str], data: bytes | str) -> Path:
    """Write a file so that the path holds either all of ``data`` (text as UTF-8) or the previous content.

    The data goes to a temporary file in the same folder, is synced to disk, and then takes the file's name. A new file
    has the permissions of the umask, an existing file keeps its own; a link stays, and its file is written. A pipe or a
    device (``/dev/stdout``) is written to directly.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:  # which may name a temporary file
        raise OSError(error.errno or 0, f"cannot write {path}: {error.strerror or error}") from error
    return Path(path)


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(EACCES, "the file is read-only")
    temporary = target.with_name(f".heta-lens-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
