"""Measured outcomes, one a line: an interrupted measurement resumes, and tables are written from the outcomes alone."""

import json
import lzma
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track

Key: TypeAlias = tuple[Any, ...]

FOLDER, KEPT = (Path(__file__).with_name(name) for name in ("measured", "tables"))  # of the machine, of the repository


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one measurement by key, in ``<folder>/<name>.jsonl``; packed, in the repository."""

    name: str
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def packed(self) -> Path:
        return KEPT / f"{self.name}.jsonl.xz"

    def pack(self) -> None:
        """Compress the outcomes into the repository, if some were measured here."""
        if self.path.exists():
            self.packed.write_bytes(lzma.compress(self.path.read_bytes(), preset=9))

    def stored(self) -> dict[Key, Any]:
        """Return the outcomes that the repository holds."""
        return _outcomes(lzma.decompress(self.packed.read_bytes()))

    def read(self) -> dict[Key, Any]:
        """Return all outcomes in the order of measurement, or those of the repository; without a line cut short."""
        if self.path.exists():
            return _outcomes(self.path.read_bytes())
        return self.stored() if self.packed.exists() else {}

    def of(self, keys: Iterable[Key]) -> tuple[dict[Key, Any], int]:
        """Return the outcomes of these keys in their order, and the number of missing outcomes."""
        measured, wanted = self.read(), [*keys]
        outcomes = {key: measured[key] for key in wanted if key in measured}
        return outcomes, len(wanted) - len(outcomes)

    def measure(
        self, keys: Iterable[Key], measured: Callable[..., Any], done: Mapping[Key, Any] | None = None
    ) -> dict[Key, Any]:
        """Measure the missing outcomes by their keys, write each to the disk at once, and return them.

        A machine without outcomes continues from those of the repository.
        """
        found, done = dict[Key, Any](), self.read() if done is None else done
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() and self.packed.exists():
            self.path.write_bytes(lzma.decompress(self.packed.read_bytes()))
        with self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # without a line that was cut short
            for key in track([key for key in keys if key not in done], self.name, console=Console(stderr=True)):
                found[key] = measured(*key)
                line = json.dumps({"key": key, "outcome": found[key]}, ensure_ascii=False)
                file.write(f"{line}\n".encode())
                file.flush()
        return found


def _outcomes(lines: bytes) -> dict[Key, Any]:
    read = map(json.loads, lines.split(b"\n")[:-1])
    return {tuple(line["key"]): line["outcome"] for line in read}
