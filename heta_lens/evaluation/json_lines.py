"""Files with a JSON value per line, read despite damaged lines, and appended whole or not at all."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from heta_lens._util.files import brief, naming, parse_json, regular_file, write_atomically

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
        _append_whole(self.path, _line(value))

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
            _append_whole(self.rejected, b"".join(rejected.line + b"\n" for rejected in bad))
            write_atomically(self.path, kept)
            self._warn(len(good), bad, f"moved to {self.rejected.name}: their work is done again")
        return removed

    def _scanned(self) -> tuple[list[bytes], list[Item], list[Rejected]]:
        """Return the lines of the file, the items, and the unreadable lines; the last line is never complete."""
        lines = (regular_file(self.path).read_bytes() if os.path.lexists(self.path) else b"").split(b"\n")
        good: list[Item] = []
        bad: list[Rejected] = []
        for number, line in enumerate(lines[:-1], 1):
            if line.strip():
                try:
                    value = parse_json(line.decode("utf-8-sig"))
                    if not isinstance(value, Mapping):
                        raise TypeError(f"it is {brief(value)}, and must be an object")
                    good.append(self.parse(value))
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


def _append_whole(path: Path, data: bytes) -> None:
    with naming(path), open(path, "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        left = memoryview(data)
        try:
            while left:  # the system may accept a part
                left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise
