"""The history of explanations: questions and results in SQLite, in a file that a later start of the app reads."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from heta_lens._util.text import single_line
from heta_lens.attribution import Attribution
from heta_lens.span_attribution import SpanAttribution

TABLE = """
CREATE TABLE IF NOT EXISTS explanations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT DEFAULT CURRENT_TIMESTAMP,
    title TEXT NOT NULL, record TEXT NOT NULL, span INTEGER NOT NULL, result BLOB NOT NULL
)"""
LISTED = 100
LONGEST = 70  # characters of a prompt in the list


class History:
    """Explanations in a SQLite file, which is created if missing; without a path, in a file that ends with this."""

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        if path is None:
            folder = mkdtemp(prefix="heta_lens_")
            finalize(self, rmtree, folder, ignore_errors=True)
            path = Path(folder) / "history.db"
        self.path = Path(path)
        try:
            self.path.touch(mode=0o600)
            with self._open() as db:
                db.execute(TABLE)
            self.path.chmod(0o600)  # prompts may be private
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"--state {self.path} cannot hold the history: {error}") from None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as db, db:
            yield db

    def add(self, record: Mapping[str, Any], title: str, result: Attribution | SpanAttribution) -> int | None:
        """Add a result, and return its number; ``record`` has the ``question``, and what shows the question again."""
        row = title, json.dumps(record), isinstance(result, SpanAttribution), result.to_bytes()
        with self._open() as db:
            return db.execute(
                "INSERT INTO explanations (title, record, span, result) VALUES (?, ?, ?, ?)", row
            ).lastrowid

    def latest(self) -> list[dict[str, Any]]:
        """List the latest explanations, newest first, with the end of each prompt."""
        query = "SELECT number, time, title, record FROM explanations ORDER BY number DESC LIMIT ?"
        with self._open() as db:
            rows = db.execute(query, [LISTED]).fetchall()
        return [
            {"number": number, "time": time, "title": title, "prompt": _end(record)}
            for number, time, title, record in rows
        ]

    def read(self, number: int) -> tuple[dict[str, Any], Attribution | SpanAttribution]:
        """Return the record and the result of an explanation."""
        query = "SELECT record, span, result FROM explanations WHERE number = ?"
        with self._open() as db:
            row = db.execute(query, [str(number)]).fetchone()  # SQLite's integers end before a path's
        if row is None:
            raise ValueError(f"explanation {number} is not in the history")
        record, span, raw = row
        return json.loads(record), (SpanAttribution if span else Attribution).of_bytes(raw, self.path.name)

    def clear(self) -> None:
        with self._open() as db:
            db.execute("DELETE FROM explanations")


def _end(record: str) -> str:
    """Return the end of a prompt, or of a chat's last message."""
    prompt = json.loads(record)["question"]["prompt"]
    text = single_line(prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or ""))
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"
