"""What the benchmarks measured, kept one outcome a line: their tables are written from it in seconds.

    python -m benchmarks.outcomes        put all that was measured into the archive that goes with the code

Measuring takes hours, so it is separate from writing, and an interrupted run resumes. What a benchmark has not begun to
measure here comes from the archive.
"""

import json
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import track

Key: TypeAlias = tuple[str | int | float, ...]

FOLDER, ARCHIVE = Path(__file__).with_name("measured"), Path(__file__).with_name("measured.tar.xz")
Folder = Annotated[
    Path, typer.Option("--outcomes", help="Where outcomes are; with another folder, nothing is written.")
]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one measurement, each with the key that says what it is of, in ``<folder>/<name>.jsonl``."""

    name: str
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def read(self) -> dict[Key, Any]:
        """In the order in which they were measured."""
        self._unpack()
        if not self.path.exists():
            return {}
        lines = (json.loads(line) for line in _whole(self.path.read_bytes()).decode().splitlines())
        return {tuple(line["key"]): line["outcome"] for line in lines}

    def of(self, keys: Sequence[Key]) -> tuple[dict[Key, Any], int]:
        """Those of these keys, in their order, and how many are missing."""
        there = self.read()
        outcomes = {key: there[key] for key in keys if key in there}
        return outcomes, len(keys) - len(outcomes)

    def measure(self, keys: Iterable[Key], measured: Callable[[Key], Any]) -> None:
        """Add what is missing."""
        done = self.read()
        for key in track([key for key in keys if key not in done], self.name, console=Console(stderr=True)):
            self.add({key: measured(key)})

    def add(self, outcomes: Mapping[Key, Any]) -> None:
        """Write all of these or none, also when interrupted: they are on the disk when this returns."""
        lines = [json.dumps({"key": key, "outcome": outcome}, ensure_ascii=False) for key, outcome in outcomes.items()]
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self.path.read_bytes() if self.path.exists() else b""
        new = self.path.with_suffix(".new")
        new.write_bytes(_whole(written) + "".join(line + "\n" for line in lines).encode())
        new.replace(self.path)

    def _unpack(self) -> None:
        if self.folder != FOLDER or self.path.exists() or not ARCHIVE.exists():
            return
        with tarfile.open(ARCHIVE) as archive:
            kept = [member for member in archive.getmembers() if member.name == self.path.name]
            archive.extractall(self.folder, kept, filter="data")


def keep() -> None:
    """Put what was measured into the archive; what was not measured here stays in it."""
    if ARCHIVE.exists():
        with tarfile.open(ARCHIVE) as archive:
            names = archive.getnames()
        for name in names:
            Outcomes(name.removesuffix(".jsonl"), FOLDER).read()
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for path in sorted(FOLDER.glob("*.jsonl")):
            archive.add(path, path.name, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The archive has the same bytes, whoever makes it."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _whole(written: bytes) -> bytes:
    """Without a last line that was cut short."""
    return written[: written.rfind(b"\n") + 1]


if __name__ == "__main__":
    typer.run(keep)
