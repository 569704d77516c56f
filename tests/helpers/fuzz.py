"""Damaged files for every reader: how a sound file is made and changed, and what must work with all that is read."""

import csv
import json
import os
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch

import heta_lens
from helpers.attributions import of_chat, uncertain
from helpers.dataset_records import CURATED, LONGRA, NARRATIVES, NINA, PROSE, WHY, science
from helpers.evaluating import recorded
from heta_lens import Attribution, SpanAttribution
from heta_lens._util import storage
from heta_lens._util.storage import OtherKind
from heta_lens.attribution import VERSION
from heta_lens.cli.flags import PromptFlags
from heta_lens.data.curated import answer_words
from heta_lens.data.instance import read_jsonl, record_of
from heta_lens.data.suites import suite
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.run_database import read_records

CHAT = {"role": "user", "content": "Hello.", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
RUN = {"suite": "recall", "model": "demo", "instances": 2, "texts": "0", "seed": 0,
       "methods": {name: {"method": name, "options": {}} for name in ("heta", "random")},
       "metrics": {"f1": {"title": "F1", "better": "more", "low": 0.0, "high": 1.0, "aggregate": "mean"},
                   "nc": {"title": "NC", "low": None, "high": None, "aggregate": "log_ratio"}}}  # fmt: skip
VALUES = {"f1": 0.5, "nc": [1.0, 2.0]}

ODD: list[Any] = [
    5, -1, 1.5, True, None, "", "x", [], {}, [5], [[]], {"a": 1}, 10**299, -(10**299), float("nan"),
    float("inf"), "long " * 3000, [None] * 50, "\0", "é\u2028", [[1, 2, 3]], [[-5, 99]],
]  # fmt: skip
ODDER: list[Any] = [
    torch.ones(3), torch.ones(0), torch.ones(4, 4), torch.tensor(1.0), torch.full((6,), float("nan")),
    torch.full((6,), -1), torch.full((6, 2), 99), torch.ones(6, dtype=torch.bool), frozenset(), frozenset((1,)),
    frozenset((1, 2)), (frozenset((1, 2)), 2), {"function": "f"}, ("a",), (1, 2),
]  # fmt: skip
PARTS = [b"\0", b"\xff", b"\xe9", b'"', b"{", b"}", b"]", b",", b"\n", b"\r", b"1e999", b"NaN", b"\xed\xa0\x80",
         b"x" * 140_000, b"\xef\xbb\xbf", b"-Infinity"]  # fmt: skip

Draw = random.Random


def changed(draw: Draw, value: Any, odd: list[Any] = ODD) -> Any:
    """The value with one field, anywhere in it, of another type or shape, missing, or added."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key, way = draw.choice([*value]), draw.random()
        if way < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, "unknown": draw.choice(odd)} if way < 0.2 else {**value, key: changed(draw, value[key], odd)}
    if isinstance(value, list | tuple) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return type(value)([*value[:at], changed(draw, value[at], odd), *value[at + 1 :]])
    return draw.choice(odd)


def damaged(draw: Draw, raw: bytes) -> bytes:
    """Bytes that are flipped, cut, of another encoding, or with something between them."""
    way, at = draw.randrange(4), draw.randint(0, len(raw))
    if way == 0:
        return bytes(draw.randrange(256) if draw.random() < 4 / len(raw) else byte for byte in raw)
    if way == 1:
        return raw[:at]
    if way == 2:
        return raw.decode("latin-1").encode(draw.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7"]))
    return raw[:at] + draw.choice([*PARTS, raw[:at]]) + raw[at:]


def damage(draw: Draw, path: Path) -> Path:
    """Change the bytes of a file half the time, or put something else in its place."""
    kind, raw = draw.random(), path.read_bytes()
    if kind < 0.02:
        path.unlink()
        ways: list[Callable[[], Any]] = [path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path),
                                         lambda: path.symlink_to("/dev/zero"), path.touch, lambda: None]  # fmt: skip
        draw.choice(ways)()
    elif kind < 0.5:
        path.write_bytes(damaged(draw, raw))
    return path


def as_array(records: Any) -> bytes:
    return json.dumps(records).encode()


def as_examples(records: Any) -> bytes:
    return json.dumps({"examples": records}).encode()


def as_lines(records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def as_table(records: Any) -> bytes:
    text = StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([[*records[0]], *(list(record.values()) for record in records)])
    return text.getvalue().encode("utf-8", "surrogatepass")


def as_parquet(records: Any) -> bytes:
    out = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), out)
    return out.getvalue()


def file(name: str, written: Callable[[Any], bytes], *records: Any) -> Callable[[Draw, Path], Path]:
    """A file of records, one of them with a changed field."""

    def made(draw: Draw, folder: Path) -> Path:
        path, given = folder / name, [*records]
        try:
            path.write_bytes(written([changed(draw, one) if draw.random() < 0.6 else one for one in given]))
        except (pyarrow.ArrowException, AttributeError, OverflowError, TypeError, ValueError):  # no such table can be
            path.write_bytes(written(given))
        return damage(draw, path)

    return made


def run_folder(draw: Draw, folder: Path) -> Path:
    """The folder of an evaluation, with a damaged database."""
    recorded(folder, RUN, [Record(one, method, "t", VALUES) for one in "ab" for method in RUN["methods"]])
    damage(draw, folder / "run.sqlite")
    return folder


def stored(kind: str) -> Callable[[Draw, Path], Path]:
    """A safetensors file, of which the fields or the bytes are changed."""

    def made(draw: Draw, folder: Path) -> Path:
        target = draw.choice([{}, {"target": frozenset((7, 9))}, {"target": (frozenset((7, 9)), 3)}])
        step: Any = {**draw.choice([uncertain, of_chat])().stored, **target}
        value = {"steps": [step], "tokens": tuple("abcdefg"), "reasoning": []} if kind.endswith("span") else step
        path = folder / "a.safetensors"
        try:
            storage.save(path, kind, VERSION, changed(draw, value, ODD + ODDER) if draw.random() < 0.6 else value)
        except (TypeError, ValueError):
            storage.save(path, kind, VERSION, value)
        return damage(draw, path)

    return made


def kept(kind: type[Attribution | SpanAttribution]) -> Callable[[Path], None]:
    """Fields of the right types and shapes may contradict each other: only reading and writing must work."""

    def use(path: Path) -> None:
        again = path.with_name("again.safetensors")
        kind.load(path).save(again)
        kind.load(again)

    return use


def use_run(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    read_records(folder)
    summary(folder)
    assert before == {path: path.read_bytes() for path in before}, "reading changed a file"


def from_suite(name: str) -> Callable[[Path], Any]:
    return lambda path: [answer_words(one) for one in suite(name, path)]


def use_made(path: Path) -> None:
    """Curated prompts are made of two files: a sound one stands beside the damaged one."""
    narratives = path.name == "narrativeqa.jsonl"
    other = path.with_name("other.jsonl")
    other.write_bytes(as_lines([science()] if narratives else NARRATIVES))
    told, asked = (path, other) if narratives else (other, path)
    suite("curated", narratives=told, questions=asked)


INSTANCES = record_of(NINA), {**record_of(NINA), "id": "another"}
WHYS = from_suite("tellmewhy")
READERS: dict[str, tuple[Callable[[Draw, Path], Path], Callable[[Path], Any]]] = {
    "jsonl": (
        file("a.jsonl", as_lines, record_of(NINA), {**record_of(NINA), "id": "c"}),
        lambda path: [*read_jsonl(path)],
    ),
    "tellmewhy.jsonl": (file("a.jsonl", as_lines, WHY, WHY), WHYS),
    "tellmewhy.json": (file("a.json", as_array, WHY, WHY), WHYS),
    "tellmewhy.csv": (file("a.csv", as_table, WHY, WHY), WHYS),
    "tellmewhy.parquet": (file("a.parquet", as_parquet, WHY, WHY), WHYS),
    "wikibio.jsonl": (file("a.jsonl", as_lines, PROSE, PROSE), from_suite("wikibio")),
    "longra.jsonl": (file("a.jsonl", as_lines, LONGRA, LONGRA), from_suite("longra")),
    "curated.json": (file("a.json", as_examples, CURATED), from_suite("curated")),
    "sciq.jsonl": (file("sciq.jsonl", as_lines, science(), science()), use_made),
    "narrativeqa.jsonl": (file("narrativeqa.jsonl", as_lines, *NARRATIVES), use_made),
    "run.sqlite": (run_folder, use_run),
    "attribution": (stored("heta_lens.attribution"), kept(Attribution)),
    "span": (stored("heta_lens.span"), kept(SpanAttribution)),
    "chat.json": (file("a.json", as_array, CHAT, CHAT), lambda path: PromptFlags(chat=path).read()),
}

OWN = {ValueError, TypeError, OtherKind, OSError, FileNotFoundError, PermissionError, IsADirectoryError}
PACKAGE = str(Path(heta_lens.__file__).parent)
LONGEST = 1000


def fault(name: str, seed: int) -> str:
    """What a reader does wrong with one case, in one sentence; empty, if it reads or refuses it."""
    make, use = READERS[name]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = make(random.Random(f"{name} {seed}"), Path(folder))
        try:
            use(path)
        except Exception as error:
            raised = traceback.extract_tb(error.__traceback__)[-1].filename
            wrong = {
                "foreign exception": type(error) not in OWN or not raised.startswith(PACKAGE),
                "more than a line": "\n" in str(error),
                "too long": len(str(error)) > LONGEST,
                "no file named": folder not in str(error),
            }
            if found := [what for what, is_so in wrong.items() if is_so]:
                told = f"{type(error).__name__}: {str(error)[:200]!r} in {raised}"
                return f"{name} --seed {seed}: {', '.join(found)}: {told}"
    return ""
