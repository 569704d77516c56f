"""Files written elsewhere, read strictly: one that cannot be read is refused in one sentence that names the place.

Nothing that a file holds ends in another library's exception, in a hang, or in a value that fails later on: JSON that
nests without end, repeats a key, or has numbers and characters that nothing can compute with is refused here.
"""

import json
import os
import re
import secrets
import stat
import unicodedata
import warnings
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EACCES, EBADF, EINVAL, ENOTSUP, EPERM
from math import isinf
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

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


# -------------------------------------------------------------------------------------------------------- file writing
# Writing files so that what was there before is never lost: a file is replaced whole, or stays as it was.


VIEWS = {".html", ".htm", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".tex", ".csv", ".json", ".jsonl", ".txt"}
NO_FOLDER_SYNC = {EACCES, EBADF, EINVAL, ENOTSUP, EPERM}  # of folders that cannot be opened or synced; nothing is lost


def check_no_view(path: str | PathLike[str], instead: str) -> None:
    """Refuse the name of a picture, a page or a table for a file of tensors; ``instead`` is what writes those."""
    if Path(path).suffix.lower() in VIEWS:
        name = Path(path).name
        raise ValueError(f"{name} would hold tensors: name it .safetensors, or write what it shows by {instead}")


def write_atomically(path: str | PathLike[str], data: bytes | str) -> Path:
    """Write a file so that its path has either all of ``data`` (text as UTF-8) or what it had before.

    The data goes to a temporary file in the same folder, is synced to disk, and then takes the file's name. A new file
    has the permissions that the umask gives, an existing one keeps its own; a link stays, and the file it leads to is
    written. What is not a regular file (a pipe, ``/dev/stdout``) is written to directly.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))
    with _naming(path):
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    return Path(path)


def append_whole(path: str | PathLike[str], data: bytes) -> None:
    """Add to the end of a file either all of ``data``, which is on the disk when this returns, or nothing."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    with _naming(path):
        new = not Path(path).exists()
        descriptor = os.open(path, flags, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(Path(path).parent)


@contextmanager
def _naming(path: str | PathLike[str]) -> Iterator[None]:
    """Say of which file it is that the system refuses something, and not of a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or 0, f"cannot write {path}: {error.strerror or error}") from error


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however much of it the system takes at once, and see it on the disk."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """See the names in a folder on the disk, where folders can be synced at all."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def check_distinct(paths: Mapping[str, str | PathLike[str] | None]) -> None:
    """Refuse two of these (by the options that give them) that are one file, so that one would overwrite the other.

    Names that differ only in case are refused too: not every file system tells them apart.
    """
    first: dict[object, str] = {}
    for name, path in paths.items():
        if path is None or _is_stream(Path(path)):
            continue
        for key in _identities(Path(path)):
            other = first.setdefault(key, name)
            if other != name:
                raise ValueError(f"{other} {paths[other]} and {name} {path} are the same file: give two files")


def _replace(target: Path, content: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(EACCES, "the file is read-only")
    temporary = target.with_name(f".heta-lens-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
        if target.exists():
            _copy_permissions(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _copy_permissions(source: Path, to: Path) -> None:
    before = source.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):  # only root gives files away
            os.chown(to, before.st_uid, before.st_gid)
    os.chmod(to, stat.S_IMODE(before.st_mode))


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _identities(path: Path) -> list[object]:
    """What two paths of one file share: where they lead, or the file that is there already."""
    leads = unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
    identities: list[object] = [leads]
    with suppress(OSError):
        there = path.stat()
        identities.append((there.st_dev, there.st_ino))
    return identities


# ----------------------------------------------------------------------------------------------------- json lines file
# A file with one JSON value per line, appended to over days: read despite damage, and repaired on resuming.


Item = TypeVar("Item")


class Rejected(NamedTuple):
    """A line that could not be read, and why."""

    number: int
    line: bytes
    reason: str


@dataclass(frozen=True)
class JsonLinesFile(Generic[Item]):
    """Lines that ``parse`` makes items of; it refuses others by a ValueError or TypeError.

    Reading skips the lines that are refused, warns how many there are, and changes nothing. `repair` moves them to
    ``rejected``. A last line without an end was cut short, or is being written: it is not read, and moved as well.
    """

    path: Path
    parse: Callable[[Mapping[str, Any]], Item]
    what: str = "records"
    again: str = "evaluate again into this folder to redo them"

    @property
    def rejected(self) -> Path:
        """Where lines that could not be read are moved to."""
        return self.path.with_suffix(f".rejected{self.path.suffix}")

    def read(self) -> list[Item]:
        """The items of all lines that can be read, in their order."""
        good, bad = self._scanned()
        if bad:
            self._warn(len(good), bad, f"skipped: {self.again}")
        return good

    def append(self, value: Mapping[str, Any]) -> None:
        """Append a line durably: it is on the disk when this returns, whole or not at all."""
        append_whole(self.path, _line(value))

    def replace(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Write these lines in place of all others, at once."""
        write_atomically(self.path, b"".join(map(_line, values)))

    def repair(self) -> int:
        """Move lines that cannot be read to ``rejected``, also a last one that was cut short.

        Returns the number of bytes removed.
        """
        if not os.path.lexists(self.path):
            return 0
        good, bad = self._scanned()
        written = read_bytes(self.path)
        whole = _whole_lines(written)
        kept = _without(whole, {line.number for line in bad})
        if cut := written[len(whole) :]:
            bad.append(Rejected(whole.count(b"\n") + 1, cut, "it was cut short"))
        if bad:
            append_whole(self.rejected, b"".join(rejected.line + b"\n" for rejected in bad))
            write_atomically(self.path, kept)
            self._warn(len(good), bad, f"moved to {self.rejected.name}: their work is done again")
        return len(written) - len(kept)

    def _scanned(self) -> tuple[list[Item], list[Rejected]]:
        """The items, and the lines that could not be read."""
        good: list[Item] = []
        bad: list[Rejected] = []
        written = read_bytes(self.path) if os.path.lexists(self.path) else b""
        for number, line in enumerate(_whole_lines(written).split(b"\n"), 1):
            if line.strip():
                try:
                    good.append(self.parse(_object(line)))
                except (ValueError, TypeError) as error:
                    bad.append(Rejected(number, line, str(error)))
        return good, bad

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


def _without(written: bytes, numbers: Collection[int]) -> bytes:
    lines = written.split(b"\n")
    return b"\n".join(line for number, line in enumerate(lines, 1) if number not in numbers)


def _whole_lines(written: bytes) -> bytes:
    """Without a last line that has no end."""
    return written[: written.rfind(b"\n") + 1]
