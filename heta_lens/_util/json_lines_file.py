"""A file with one JSON value per line, appended to over days: read despite damage, and repaired on resuming."""

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from heta_lens._util.file_reading import brief, parse_json, read_bytes
from heta_lens._util.file_writing import append_whole, write_atomically

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
        whole = _whole(written)
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
        for number, line in enumerate(_whole(written).split(b"\n"), 1):
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


def _whole(written: bytes) -> bytes:
    """Without a last line that has no end."""
    return written[: written.rfind(b"\n") + 1]
