"""Explanations that outlive the server: a SQLite file of questions and results."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from heta_lens._util.text import single_line
from heta_lens.attribution import Attribution
from heta_lens.span_attribution import SpanAttribution

TABLE = """
CREATE TABLE IF NOT EXISTS explanations (
    number INTEGER PRIMARY KEY, asked_at TEXT DEFAULT CURRENT_TIMESTAMP,
    asked TEXT NOT NULL, title TEXT NOT NULL, spans INTEGER NOT NULL, result BLOB NOT NULL
)"""
LISTED = 100
LONGEST = 70  # characters of a prompt


class History:
    """The explanations in a file, which is made if there is none."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.touch(mode=0o600)  # prompts are nobody else's business
            with self._open() as db:
                db.execute(TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"--state {self.path} cannot hold the history: {error}") from None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as db, db:
            yield db

    def add(self, asked: Mapping[str, Any], title: str, result: Attribution | SpanAttribution) -> None:
        row = json.dumps(asked), title, isinstance(result, SpanAttribution), result.to_bytes()
        with self._open() as db:
            db.execute("INSERT INTO explanations (asked, title, spans, result) VALUES (?, ?, ?, ?)", row)

    def latest(self) -> list[dict[str, Any]]:
        """List the latest explanations with the end of their prompts, the last one first."""
        query = "SELECT number, asked_at, title, asked FROM explanations ORDER BY number DESC LIMIT ?"
        with self._open() as db:
            rows = db.execute(query, [LISTED]).fetchall()
        return [
            {"number": number, "at": at, "title": title, "prompt": _end(asked)} for number, at, title, asked in rows
        ]

    def read(self, number: int) -> tuple[dict[str, Any], Attribution | SpanAttribution]:
        """Return what was asked, and the result."""
        query = "SELECT asked, spans, result FROM explanations WHERE number = ?"
        with self._open() as db:
            row = db.execute(query, [number]).fetchone()
        if row is None:
            raise ValueError(f"explanation {number} is not in {self.path.name}")
        asked, spans, raw = row
        return json.loads(asked), (SpanAttribution if spans else Attribution).of_bytes(raw, self.path.name)

    def clear(self) -> None:
        with self._open() as db:
            db.execute("DELETE FROM explanations")


def _end(asked: str) -> str:
    """Return the end of a question's prompt, or of its last message."""
    prompt = json.loads(asked)["question"]["prompt"]
    text = single_line(prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or ""))
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"
