"""Resuming: the database of an evaluation is made, or opened again by the same request, and gets the missing tasks."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heta_lens._util.files import RUN
from heta_lens._util.python import versions
from heta_lens.data.instance import Instance, record_of
from heta_lens.evaluation.run_database import SCHEMA, TABLES, RunDatabase, check_schema, different_parts, joined


@contextmanager
def opened(
    folder: Path,
    request: Mapping[str, Any],
    instances: Sequence[tuple[int, Instance]],
    metrics: Sequence[str],
    *,
    retry_failed: bool = False,
) -> Iterator[RunDatabase]:
    """Open or make the database of an evaluation, with a task for every prompt and method.

    A database with another request is refused, but methods may be added. Prompts come with their numbers in the
    evaluation. A finished task that lacks a metric is pending again.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write into {folder}: {error.strerror}") from None
    request = json.loads(json.dumps(request))
    with joined(folder / RUN) as database:
        with database.writing() as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                made = {"schema": SCHEMA, "request": request, "versions": versions()}
                db.executemany("INSERT INTO meta VALUES (?, ?)", [(name, json.dumps(made[name])) for name in made])
            check_schema(database)
            _check_request(database, request)
            db.execute("UPDATE meta SET value = ? WHERE name = 'request'", [json.dumps(request)])
            _add_tasks(db, [*request["methods"]], instances, metrics, retry_failed)
        yield database


def _check_request(database: RunDatabase, request: Mapping[str, Any]) -> None:
    """Refuse another evaluation; methods may be added, and a model may have another name."""
    before, after = database.run, {"schema": SCHEMA, **request, "versions": versions()}
    changed = [name for name in different_parts(before, after) if name not in ("model", "fingerprint")]
    if before["methods"].items() <= after["methods"].items():
        changed = [name for name in changed if name != "methods"]
    if not changed:
        return
    held = "; ".join(f"{kind}: {', '.join(before[kind])}" for kind in ("methods", "metrics") if kind in before)
    raise ValueError(
        f"{database.path} holds an evaluation with other {', '.join(changed)}: give another folder, or the whole "
        f"request of the folder ({held}), to which methods may be added"
    )


def _add_tasks(
    db: sqlite3.Connection,
    methods: Sequence[str],
    instances: Sequence[tuple[int, Instance]],
    metrics: Sequence[str],
    retry_failed: bool,
) -> None:
    prompts = [(each.id, number, each.template, len(json.dumps(record_of(each)))) for number, each in instances]
    db.executemany("INSERT OR IGNORE INTO prompts (prompt, number, template, size) VALUES (?, ?, ?, ?)", prompts)
    tasks = [(each.id, method, place) for _, each in instances for place, method in enumerate(methods)]
    added = "INSERT INTO tasks (prompt, method, place) VALUES (?, ?, ?)"
    db.executemany(f"{added} ON CONFLICT DO UPDATE SET place = excluded.place", tasks)
    if retry_failed:
        db.execute("UPDATE tasks SET state = 'pending', deaths = 0 WHERE state = 'failed'")
        db.execute("DELETE FROM metrics WHERE failed")
    if metrics:
        wanted = ", ".join("?" * len(metrics))
        measured = f"SELECT count(*) FROM metrics WHERE metric IN ({wanted})"
        of_task = f"({measured} AND metrics.prompt = tasks.prompt AND metrics.method = tasks.method)"
        again = f"UPDATE tasks SET state = 'pending' WHERE state = 'done' AND {of_task} < ?"
        db.execute(again, [*metrics, len(metrics)])
