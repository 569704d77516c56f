"""Measured outcomes, one a line: an interrupted measurement resumes, and tables are written from the outcomes alone."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track

Key: TypeAlias = tuple[Any, ...]

FOLDER = Path(__file__).with_name("measured")


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one measurement by key, in ``<folder>/<name>.jsonl``."""

    name: str
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def read(self) -> dict[Key, Any]:
        """Return all outcomes in the order of measurement, without a last line that was cut short."""
        if not self.path.exists():
            return {}
        lines = map(json.loads, self.path.read_bytes().split(b"\n")[:-1])
        return {tuple(line["key"]): line["outcome"] for line in lines}

    def of(self, keys: Iterable[Key]) -> tuple[dict[Key, Any], int]:
        """Return the outcomes of these keys in their order, and the number of missing outcomes."""
        measured, wanted = self.read(), [*keys]
        outcomes = {key: measured[key] for key in wanted if key in measured}
        return outcomes, len(wanted) - len(outcomes)

    def measure(
        self, keys: Iterable[Key], measured: Callable[..., Any], done: Mapping[Key, Any] | None = None
    ) -> dict[Key, Any]:
        """Measure the missing outcomes by their keys, write each to the disk at once, and return them."""
        found, done = dict[Key, Any](), self.read() if done is None else done
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)  # without a line that was cut short
            for key in track([key for key in keys if key not in done], self.name, console=Console(stderr=True)):
                found[key] = measured(*key)
                line = json.dumps({"key": key, "outcome": found[key]}, ensure_ascii=False)
                file.write(f"{line}\n".encode())
                file.flush()
        return found
