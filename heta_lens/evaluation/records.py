"""What an evaluation leaves behind: a folder with one line of JSON for every instance and method, as it was finished.

``run.json`` says what was asked for; ``records.jsonl`` has a `Record` a line, in the order they were finished. A line
that was cut short (the machine went down while it was written) is taken away, and its work done again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens.prediction import versions

Value: TypeAlias = float | int | Sequence[float | int] | None

RUN, RECORDS = "run.json", "records.jsonl"


@dataclass(frozen=True)
class Record:
    """How one method did on one instance.

    ``values`` holds a number for each metric (for one that is a ratio of sums, its two terms), or None where it has
    none, and then ``reasons`` says why. ``doubts`` names metrics whose number says little: scores that told no tokens
    apart, say. ``failed`` is why there are no values at all.
    """

    instance: str
    method: str
    template: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    doubts: Sequence[str] = ()
    failed: str = ""
    tokens: int = 0
    correct: bool | None = None
    """Whether the explained token is what the model says by itself."""
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubts", tuple(self.doubts))  # which JSON has as a list
        for name, value in self.values.items():
            if not all(map(isfinite, terms(value))):
                raise ValueError(
                    f"{name} of {self.method!r} on {self.instance!r} is {value!r}: "
                    "a value must be finite, or None and its reason in reasons"
                )

    @property
    def key(self) -> tuple[str, str]:
        return self.instance, self.method


def terms(value: Value) -> tuple[float, ...]:
    """The numbers a value is made of: none where there is no value."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)


def read_run(folder: Path) -> dict[str, Any]:
    if not (folder / RUN).exists():
        raise ValueError(f"{folder} holds no evaluation: heta-lens evaluate … --out {folder} makes one")
    try:
        return json.loads((folder / RUN).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / RUN} is damaged ({error}): begin again in another folder") from None


def read_records(folder: Path) -> list[Record]:
    """Those that are whole, in the order of their instances and methods, whatever order they were finished in.

    Of two for one instance and method, the later counts: it was done again.
    """
    path = folder / RECORDS
    found = {record.key: record for record in _records(path.read_bytes())} if path.exists() else {}
    return [found[key] for key in sorted(found)]


def begin(folder: Path, asked: Mapping[str, Any]) -> None:
    """Say in the folder what is asked for, or see that it is the same as when it was begun, but for methods added."""
    written = json.dumps({**asked, "versions": versions()}, ensure_ascii=False, indent=1) + "\n"
    if (folder / RUN).exists():
        before, now = read_run(folder), json.loads(written)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if "methods" in changed and before.get("methods", {}).items() <= now.get("methods", {}).items():
            changed.remove("methods")
        if changed:
            held = "; ".join(f"{what}: {', '.join(before[what])}" for what in ("methods", "metrics") if what in before)
            raise ValueError(
                f"{folder} holds an evaluation with other {', '.join(changed)}: give another folder, or all that this "
                f"one has ({held}), to which methods may be added"
            )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder to keep the evaluation in")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN).write_text(written, encoding="utf-8")
    repair(folder)


def append(folder: Path, record: Record) -> None:
    """Write a line, so that it is on the disk when this returns."""
    line = json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n"
    with open(folder / RECORDS, "ab") as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def repair(folder: Path) -> int:
    """Take away what is left of a line that was cut short; how many bytes that were."""
    path = folder / RECORDS
    if not path.exists():
        return 0
    written = path.read_bytes()
    whole = _whole(written)
    if len(whole) < len(written):
        with open(path, "r+b") as file:
            file.truncate(len(whole))
    return len(written) - len(whole)


def _records(written: bytes) -> Iterator[Record]:
    for number, line in enumerate(_whole(written).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield Record(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{RECORDS}, line {number}, is no record ({error}): take the line away, and go on evaluating to have "
                "it done again"
            ) from None


def _whole(written: bytes) -> bytes:
    """Without a last line that has no end, or none that makes it JSON: something was written after it was cut short."""
    whole = written[: written.rfind(b"\n") + 1]
    last = whole[:-1].rpartition(b"\n")[2]
    return whole if not last or _is_json(last) else whole[: -len(last) - 1]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
