"""Strict readers of files from elsewhere, and writers that never lose the previous content of a file.

An unreadable file is refused in one sentence with the place of the fault. JSON is refused if it nests without end,
repeats a key, or has numbers or characters with which later code would fail.
"""

import json
import os
import re
import secrets
import shutil
import stat
import unicodedata
import warnings
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EACCES
from io import FileIO
from math import isinf
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

DEEPEST = 64  # levels of JSON, far below the limit of Python's recursion
DIGITS = 300  # of a whole number that a float can hold
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
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(f"{os.fspath(path)!r} cannot be opened ({reason})") from None
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise OSError(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}: give a regular file")
    return Path(path)


def read_bytes(path: str | PathLike[str], missing: str = "") -> bytes:
    """Read a regular file."""
    try:
        return regular_file(path, missing).read_bytes()
    except PermissionError:
        raise PermissionError(f"{path} cannot be read: permission denied") from None


def read_text(path: str | PathLike[str], missing: str = "") -> str:
    """Read a file of UTF-8, without a byte order mark."""
    return decoded(read_bytes(path, missing), str(path))


def decoded(raw: bytes, path: str) -> str:
    """Decode UTF-8; refuse other encodings with the likely encoding and the line of the fault."""
    try:
        text = raw.decode("utf-8-sig")
        at, fault, likely = text.find("\0"), "has a NUL byte, perhaps as UTF-16", "UTF-16"
        line = text.count("\n", 0, at) + 1
    except UnicodeDecodeError as error:
        at = error.start + (len(BOM_UTF8) if raw.startswith(BOM_UTF8) else 0)
        line, likely = raw.count(b"\n", 0, at) + 1, "UTF-16" if b"\0" in raw else "Latin-1"
        fault, text = f"is not UTF-8 (byte 0x{raw[at]:02x}), perhaps {likely}", ""
        if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            line, fault, likely = 1, "is not UTF-8 but UTF-16", "UTF-16"
    if at >= 0:
        way_out = f"convert it, as by iconv -f {likely.upper()} -t UTF-8"
        raise ValueError(f"{path}, line {line}, {fault}: {way_out}")
    return text


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines that are not blank, with numbers from 1; `splitlines` would also break inside a text."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


class NotJSON(ValueError):
    """Text that is not JSON from ``position`` on."""

    def __init__(self, reason: str, position: int, column: int) -> None:
        super().__init__(f"{reason} at character {column}")
        self.reason, self.position = reason, position


def parse_json(text: str, *, numbers: bool = True, halves: bool = False) -> Any:
    """Parse JSON; refuse values with which later code would fail.

    Args:
        text: the JSON.
        numbers: refuse NaN, Infinity and numbers that overflow, which are not JSON although Python writes them.
        halves: accept half of a surrogate pair, which no UTF-8 file can hold.
    """
    parse = {"parse_constant": _not_finite, "parse_float": _finite} if numbers else {}
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_int=_whole, **parse)
    except json.JSONDecodeError as error:
        raise NotJSON(error.msg, error.pos, error.colno) from None
    except RecursionError:
        raise ValueError(f"it nests more than {DEEPEST} levels deep") from None
    if text.count("[") + text.count("{") > DEEPEST or (not halves and HALF_PAIR.search(text)):
        _check_nested(value, halves)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
    """Check a value level by level, so that any depth can be checked."""
    level = [value]
    for _ in range(DEEPEST + 1):
        for item in level:
            if isinstance(item, str) and not halves and SURROGATE.search(item):
                raise ValueError(f"the text {brief(item)} has half of a surrogate pair, which is not a character")
        mappings = [item for item in level if isinstance(item, dict)]
        level = [inner for item in mappings for inner in (*item, *item.values())] + [
            inner for item in level if isinstance(item, list) for inner in item
        ]
        if not level:
            return
    raise ValueError(f"it nests more than {DEEPEST} levels deep")


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
    has the permissions of the umask, an existing file keeps permissions and owner; a link stays, and its file is
    written. A pipe or a device (``/dev/stdout``) is written to directly.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    with _naming(path):
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    return Path(path)


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(EACCES, "the file is read-only")
    temporary = target.with_name(f".heta-lens-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", buffering=0) as file:
            _write_all(file, content)
        if target.exists():
            before = target.stat()
            with suppress(PermissionError):  # only root gives files away
                shutil.chown(temporary, before.st_uid, before.st_gid)
            os.chmod(temporary, stat.S_IMODE(before.st_mode))
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def append_whole(path: str | PathLike[str], data: bytes) -> None:
    """Append all of ``data`` to a file, on the disk when this returns, or nothing."""
    with _naming(path), open(path, "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, data)
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def _write_all(file: FileIO, data: bytes) -> None:
    """Write data, in parts of the size that the system accepts, and sync the file to disk."""
    left = memoryview(data)
    while left:
        left = left[os.write(file.fileno(), left) :]
    os.fsync(file.fileno())


@contextmanager
def _naming(path: str | PathLike[str]) -> Iterator[None]:
    """Name the file in errors of the system, instead of a temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write {path}: {error.strerror or error}") from error


def check_distinct(paths: Mapping[str, str | PathLike[str] | None]) -> None:
    """Refuse two options with paths of one file; names that differ only in case count as equal."""
    first: dict[object, str] = {}
    for name, path in paths.items():
        if path is None or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
            continue  # a stream may be given twice
        keys: list[object] = [unicodedata.normalize("NFC", os.path.realpath(path)).casefold()]
        with suppress(OSError):
            there = os.stat(path)
            keys.append((there.st_dev, there.st_ino))
        for key in keys:
            other = first.setdefault(key, name)
            if other != name:
                raise ValueError(f"{other} {paths[other]} and {name} {path} are the same file: give two files")


# --------------------------------------------------------------------------------------------------------- json lines
Item = TypeVar("Item")


class Rejected(NamedTuple):
    """An unreadable line, and the reason."""

    number: int
    line: bytes
    reason: str


@dataclass(frozen=True)
class JsonLinesFile(Generic[Item]):
    """A file with a JSON value per line, read despite damage; ``parse`` turns values into items or raises an error.

    Reading skips unreadable lines with a warning, and changes nothing. `repair` moves unreadable lines to
    ``rejected``. A last line without an end is incomplete: it is not read, and moved as well.
    """

    path: Path
    parse: Callable[[Mapping[str, Any]], Item]
    what: str = "records"
    again: str = "evaluate again into this folder to redo them"

    @property
    def rejected(self) -> Path:
        """The file for unreadable lines."""
        return self.path.with_suffix(f".rejected{self.path.suffix}")

    def read(self) -> list[Item]:
        """Return the items of all readable lines, in order."""
        _, good, bad = self._scanned()
        if bad:
            self._warn(len(good), bad, f"skipped: {self.again}")
        return good

    def append(self, value: Mapping[str, Any]) -> None:
        """Append a line, on the disk when this returns, whole or not at all."""
        append_whole(self.path, _line(value))

    def replace(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lines at once."""
        write_atomically(self.path, b"".join(map(_line, values)))

    def repair(self) -> int:
        """Move unreadable lines and an incomplete last line to ``rejected``; return the number of bytes removed."""
        lines, good, bad = self._scanned()
        *lines, cut = lines
        numbers = {line.number for line in bad}
        kept = b"".join(line + b"\n" for number, line in enumerate(lines, 1) if number not in numbers)
        removed = sum(len(line) + 1 for line in lines) + len(cut) - len(kept)
        if cut:
            bad.append(Rejected(len(lines) + 1, cut, "it was cut short"))
        if bad:
            append_whole(self.rejected, b"".join(rejected.line + b"\n" for rejected in bad))
            write_atomically(self.path, kept)
            self._warn(len(good), bad, f"moved to {self.rejected.name}: their work is done again")
        return removed

    def _scanned(self) -> tuple[list[bytes], list[Item], list[Rejected]]:
        """Return the lines of the file, the items, and the unreadable lines; the last line is never complete."""
        lines = (read_bytes(self.path) if os.path.lexists(self.path) else b"").split(b"\n")
        good: list[Item] = []
        bad: list[Rejected] = []
        for number, line in enumerate(lines[:-1], 1):
            if line.strip():
                try:
                    good.append(self.parse(_object(line)))
                except (ValueError, TypeError) as error:
                    bad.append(Rejected(number, line, str(error)))
        return lines, good, bad

    def _warn(self, kept: int, rejected: list[Rejected], outcome: str) -> None:
        first = rejected[0]
        warnings.warn(
            f"{len(rejected)} of {len(rejected) + kept} lines of {self.path} are not {self.what} (line {first.number}: "
            f"{first.reason}) and are {outcome}",
            stacklevel=4,
        )


def _line(value: Mapping[str, Any]) -> bytes:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    return line.encode(errors="replace")  # a text may have half of a surrogate pair


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    if not isinstance(value, Mapping):
        raise TypeError(f"it is {brief(value)}, and must be an object")
    return value
