"""Readers that name the place of a fault, and writers that never lose the previous content of a file."""

import json
import os
import re
import secrets
import stat
from errno import EACCES
from os import PathLike
from pathlib import Path
from reprlib import Repr
from typing import Any

RUN = "run.sqlite"  # the database of an evaluation, in its folder
SURROGATE = re.compile("[\ud800-\udfff]")

_short = Repr()
_short.maxstring = _short.maxother = 80
_short.maxlong = 40


def brief(value: Any) -> str:
    """Return a short form of a value for errors, on one line."""
    return " ".join(_short.repr(value).split("\n"))


# ------------------------------------------------------------------------------------------------------------ reading
def regular_file(path: str | PathLike[str], missing: str = "") -> Path:
    """Return the path of a file; refuse others, with the message ``missing`` if one is given."""
    if not os.path.isfile(path):
        what = f"{path} is a folder or a pipe: name a file" if os.path.exists(path) else f"there is no file {path}"
        raise FileNotFoundError(missing or what)
    return Path(path)


def read_text(path: str | PathLike[str], missing: str = "") -> str:
    """Read a file of UTF-8, without a byte order mark."""
    return decoded(regular_file(path, missing).read_bytes(), str(path))


def decoded(raw: bytes, path: str) -> str:
    """Decode UTF-8; refuse other encodings with the likely encoding and the line of the fault."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, likely = raw.count(b"\n", 0, error.start) + 1, "UTF-16" if b"\0" in raw else "Latin-1"
        raise ValueError(
            f"{path}, line {line}, is not UTF-8, perhaps {likely}: convert it, as by iconv -f {likely.upper()} -t UTF-8"
        ) from None


def invalid_json(place: str, error: ValueError, line: int = 1) -> ValueError:
    """Return the error of text that begins at a line of a place."""
    if not isinstance(error, json.JSONDecodeError):
        return ValueError(f"{place}, from line {line} on: {error}")
    where = f"{place}, line {line + error.lineno - 1}"
    return ValueError(f"{where}, is not valid JSON: {error.msg} at character {error.colno}")


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
