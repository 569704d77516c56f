"""Damaged files for every reader: how a sound file is made and changed, and what must work with all that is read."""

import copy
import json
import os
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch

import heta_lens
from heta_lens import Attribution, SpanAttribution
from heta_lens._util import storage
from heta_lens._util.storage import OtherKind
from heta_lens.attribution import VERSION, stored_fields
from heta_lens.cli.flags import PromptFlags
from heta_lens.data.curated import answer_words
from heta_lens.data.instance import read_jsonl
from heta_lens.data.records import read
from heta_lens.data.suites import suite
from heta_lens.diagnostics import Diagnostics
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.report.results import summary
from heta_lens.evaluation.resuming import opened
from heta_lens.evaluation.run_database import read_records

Make = Callable[[random.Random, Path], Path]


@dataclass(frozen=True)
class Reader:
    """``make`` writes a case and says where; ``use`` reads it and puts what it is to use."""

    make: Make
    use: Callable[[Path], Any]


INSTANCE = {"id": "a", "text": "The key is in the box. Where? In the", "answer": " box", "gold": [[18, 21]],
            "support": [[0, 22]], "template": "t", "choices": [" box", " jar"],
            "counterfactual": {"id": "b", "text": "The key is in the jar.", "answer": None}}  # fmt: skip
WHY = {"narrative": "Kim was ill. Kim left. Kim slept.", "question": "Why did Kim leave?", "answer": "Kim was ill.",
       "question_meta": "n_sentence_1_q", "helpful_sentences": [0], "is_ques_answerable": "Answerable",
       "original_narrative_form": ["Kim was ill.", "Kim left.", "Kim slept."]}  # fmt: skip
PROSE = {"wiki_bio_text": "J. Doe is a pilot. She flew in Peru."}
LONGRA = {"text": "I was in Oslo. (I slept.) I was in the", "target": "capital", "category": "city",
          "antecedent_span": [9, 13], "distractor_span": [15, 25], "antecedent": "Oslo"}  # fmt: skip
CURATED = {"id": "q1", "sciq_id": "s1", "input_text": "A man ran. The sun is hot. What is hot?", "answer": "the sun",
           "narrative_segment": "A man ran.", "sciq_support_segment": "The sun is hot.", "question": "What is hot?",
           "important_words": ["sun"]}  # fmt: skip
SCIQ = {"question": "What is hot?", "correct_answer": "the sun", "support": "We see the sun.", "distractor1": "ice",
        "distractor2": "", "distractor3": None}  # fmt: skip
STORY = {"document": {"summary": {"text": "Once there was a very old man who lived alone. He died."}}}
CHAT = {"role": "user", "content": "Hello.", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
RUN = {"suite": "recall", "model": "demo", "instances": 2, "texts": "0", "seed": 0,
       "methods": {"heta": {"method": "heta", "options": {"beta": 1.0}}, "random": {"method": "random", "options": {}}},
       "metrics": {"f1": {"title": "F1", "better": "more", "low": 0.0, "high": 1.0, "aggregate": "mean"},
                   "nc": {"title": "NC", "low": None, "high": None, "aggregate": "log_ratio"}}}  # fmt: skip
LINE = {"instance": "a", "method": "heta", "template": "t", "values": {"f1": 0.5, "nc": [1.0, 2.0]}, "reasons": {},
        "degenerate": ["f1"], "failed": "", "tokens": 4, "correct": True, "seconds": 0.5,
        "forwards": 3, "backwards": 0}  # fmt: skip


def lines(*records: Any) -> Callable[[random.Random], bytes]:
    """Lines of JSON, one of them with a changed field."""

    def made(draw: random.Random) -> bytes:
        chosen = [changed(draw, one) if draw.random() < 0.6 else one for one in records]
        return b"".join(as_json(draw, one) + b"\n" for one in chosen)

    return made


def table(*records: Any) -> Callable[[random.Random], bytes]:
    """A CSV file."""

    def made(draw: random.Random) -> bytes:
        rows = [[*records[0]], *([str(value).replace('"', "'") for value in one.values()] for one in records)]
        row = draw.choice(rows)
        if draw.random() < 0.5:
            row[draw.randrange(len(row))] = str(draw.choice(ODD))
        text = StringIO()
        text.writelines(",".join(f'"{one}"' for one in one_row) + "\r\n" for one_row in rows)
        return text.getvalue().encode("utf-8", "surrogatepass")

    return made


def parquet(*records: Any) -> Callable[[random.Random], bytes]:
    def made(draw: random.Random) -> bytes:
        try:
            return written([changed(draw, one) for one in records])
        except (pyarrow.ArrowException, UnicodeError, OverflowError, TypeError, ValueError):  # no such table can be
            return written(records)

    def written(rows: Sequence[Any]) -> bytes:
        out = BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([*rows]), out)
        return out.getvalue()

    return made


def file(name: str, sound: Callable[[random.Random], bytes]) -> Make:
    """A file of this name, whose bytes are damaged half the time, or something else in its place."""

    def made(draw: random.Random, folder: Path) -> Path:
        path, raw, kind = folder / name, sound(draw), draw.random()
        if kind < 0.02:
            return odd(draw, path)
        path.write_bytes(draw.choice(BYTES)(draw, raw) if kind < 0.55 else raw)
        return path

    return made


def odd(draw: random.Random, path: Path) -> Path:
    """What is no regular file."""
    ways: list[Callable[[], Any]] = [
        path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path), lambda: path.symlink_to("/dev/zero"),
        lambda: path.write_bytes(b""), lambda: None,
    ]  # fmt: skip
    path.unlink(missing_ok=True)
    draw.choice(ways)()
    return path


def run_folder(draw: random.Random, folder: Path) -> Path:
    """The folder of an evaluation, with a damaged database."""
    with opened(folder, RUN, [*enumerate(suite("recall", limit=2, facts=2))], []) as run:
        while (claim := run.claim("fuzz/1/0", [])) is not None:
            for method in RUN["methods"]:
                run.commit(claim, Record(**{**LINE, "instance": claim.prompt, "method": method}))
    file("run.sqlite", lambda _: (folder / "run.sqlite").read_bytes())(draw, folder)
    return folder


def attribution(count: int = 4) -> Attribution:
    errors = {"scores": torch.ones(count), "gate": None}
    return Attribution(
        ids=torch.arange(count), tokens=tuple("abcdefgh"[:count]), positions=torch.arange(count),
        offsets=torch.tensor([[at, at + 1] for at in range(count)]), special=torch.arange(count) == 0,
        text="abcdefgh"[:count], target=7, target_text=" x", method="heta", scores=torch.rand(count),
        parts={"gate": torch.rand(count)}, options={"probes": 3, "mask": torch.ones(2), "pair": (1, None)},
        diagnostics=Diagnostics.of({"standard_errors": errors, "probes": 3, "sink_mass": 0.4, "target_log_prob": -1.0,
                                    "target_rank": 1, "forwards": 3, "hvps": 2, "chosen": {"variant": "gs"}}),
        interactions=torch.rand(count, count),
    )  # fmt: skip


TARGETS: list[dict[str, Any]] = [
    {},
    {"target": frozenset((7, 9)), "target_text": "any of ' x', ' y'",
     "diagnostics": Diagnostics.of({"target_log_prob": -1.0, "target_rank": 1})},
    {"target": (frozenset((7, 9)), 3), "target_text": ("any of ' x', ' y'", " z"), "diagnostics": Diagnostics()},
    {"target": {"function": "margin"}, "target_text": "margin", "diagnostics": Diagnostics(target_value=0.5)},
]  # fmt: skip
MESSAGES = {"roles": ("user", "tool"), "places": torch.tensor([[0, 1, 2], [1, 2, 3]])}


def fields_of(made: Attribution, chat: bool) -> dict[str, Any]:
    messages = {**MESSAGES, "owners": (torch.arange(len(made)) - 1).clamp(max=1)} if chat else None
    return {**stored_fields(made), "messages": messages}


def stored(kind: str, span: bool, chat: bool = False) -> Make:
    """A safetensors file, of which the fields or the bytes are changed."""

    def made(draw: random.Random, folder: Path) -> Path:
        path = folder / "a.safetensors"
        torch.manual_seed(draw.randrange(2**31))
        steps = [fields_of(step, chat) | draw.choice(TARGETS) for step in map(attribution, (1, 2, 3, 4))]
        reasoning = steps[:2] if draw.random() < 0.5 else []
        value = {"steps": steps[2:], "tokens": tuple("abcde"), "reasoning": reasoning} if span else steps[3]
        try:
            storage.save(path, kind, VERSION, mutated(draw, value) if draw.random() < 0.6 else value)
        except (TypeError, ValueError):
            storage.save(path, kind, VERSION, value)
        if draw.random() < 0.4:
            raw = path.read_bytes()
            file(path.name, lambda _: raw)(draw, folder)
        return path

    return made


TENSORS = [torch.ones(3), torch.ones(0), torch.ones(4, 4), torch.tensor(1.0), torch.full((4,), float("nan")),
           torch.full((4,), -1), torch.full((4, 2), 99), torch.ones(4, dtype=torch.bool)]  # fmt: skip


SETS: list[Any] = [frozenset(), frozenset((1,)), frozenset((1, 2)), (frozenset((1, 2)), 2), {"function": "f"}]


def mutated(draw: random.Random, value: Any) -> Any:
    """A field, anywhere, of another type or shape."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice([*value])
        if draw.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutated(draw, value[key])}
    if isinstance(value, list | tuple) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return type(value)([*value[:at], mutated(draw, value[at]), *value[at + 1 :]])
    return draw.choice([*TENSORS, *ODD, *SETS, ("a",), (1, 2), ("a", "b")])


def loaded_and_kept(kind: type[Attribution | SpanAttribution]) -> Callable[[Path], None]:
    """Fields of the right types and shapes may contradict each other: only reading and writing must work."""

    def use(path: Path) -> None:
        again = path.with_name("again.safetensors")
        kind.load(path).save(again)
        kind.load(again)

    return use


def use_run(folder: Path) -> None:
    """Reading changes nothing."""
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
    read_records(folder)
    summary(folder)
    assert before == {path: path.read_bytes() for path in before}, "reading changed a file"


def from_suite(name: str, **options: Any) -> Callable[[Path], Any]:
    def use(path: Path) -> None:
        found = suite(name, path, **options)
        [answer_words(one) for one in found]

    return use


def use_made(path: Path) -> None:
    other = path.with_name("other.jsonl")
    story = "summary" in path.name
    other.write_bytes(lines(SCIQ if story else STORY)(Sound()))
    told, asked = (path, other) if story else (other, path)
    suite("curated", narratives=told, questions=asked)


class Sound(random.Random):
    """Draws nothing that changes anything."""

    def random(self) -> float:
        return 0.99


READERS = {
    "jsonl": Reader(file("a.jsonl", lines(INSTANCE, {**INSTANCE, "id": "c"})), lambda path: list(read_jsonl(path))),
    "tellmewhy.jsonl": Reader(file("a.jsonl", lines(WHY, WHY)), from_suite("tellmewhy", answer="given")),
    "tellmewhy.json": Reader(file("a.json", lines([WHY, WHY])), from_suite("tellmewhy", answer="given")),
    "tellmewhy.csv": Reader(file("a.csv", table(WHY, WHY)), from_suite("tellmewhy", answer="given")),
    "tellmewhy.parquet": Reader(file("a.parquet", parquet(WHY, WHY)), from_suite("tellmewhy", answer="given")),
    "wikibio.jsonl": Reader(file("a.jsonl", lines(PROSE, PROSE)), from_suite("wikibio")),
    "wikibio.parquet": Reader(file("a.parquet", parquet(PROSE, PROSE)), from_suite("wikibio")),
    "longra.jsonl": Reader(file("a.jsonl", lines(LONGRA, LONGRA)), from_suite("longra")),
    "curated.json": Reader(file("a.json", lines({"examples": [CURATED]})), from_suite("curated")),
    "sciq.jsonl": Reader(file("a.jsonl", lines(SCIQ, SCIQ)), use_made),
    "narrativeqa.jsonl": Reader(file("summary.jsonl", lines(STORY, STORY)), use_made),
    "csv": Reader(file("a.csv", table(SCIQ)), read),
    "parquet": Reader(file("a.parquet", parquet(SCIQ, SCIQ)), read),
    "run.sqlite": Reader(run_folder, use_run),
    "attribution": Reader(stored("heta_lens.attribution", span=False), loaded_and_kept(Attribution)),
    "span": Reader(stored("heta_lens.span", span=True), loaded_and_kept(SpanAttribution)),
    "chat attribution": Reader(stored("heta_lens.attribution", span=False, chat=True), loaded_and_kept(Attribution)),
    "chat span": Reader(stored("heta_lens.span", span=True, chat=True), loaded_and_kept(SpanAttribution)),
    "chat.json": Reader(file("a.json", lines([CHAT, CHAT])), lambda path: PromptFlags(chat=path).read()),
}


ODD: list[Any] = [
    5, -1, 1.5, True, None, "", "x", [], {}, [5], [[]], {"a": 1}, 10**299, -(10**299), float("nan"),
    float("inf"), "long " * 3000, [None] * 50, "\0", "é\u2028", [[1, 2, 3]], [[-5, 99]],
]  # fmt: skip


def flipped(draw: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.randint(1, 8)):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def cut(draw: random.Random, raw: bytes) -> bytes:
    return raw[: draw.randint(0, len(raw))]


def encoded(draw: random.Random, raw: bytes) -> bytes:
    text = raw.decode("latin-1")
    return text.encode(draw.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"]))


def inserted(draw: random.Random, raw: bytes) -> bytes:
    at, what = draw.randint(0, len(raw)), draw.choice(
        [b"\0", b"\xff", b"\xe9", b'"', b"{", b"}", b"[", b"]", b",", b"\n", b"\r", b"1e999", b"NaN",
         b"\xed\xa0\x80", b"x" * 140_000, b"\xef\xbb\xbf", b"-Infinity"]
    )  # fmt: skip
    return raw[:at] + what + raw[at:]


def repeated(draw: random.Random, raw: bytes) -> bytes:
    start, stop = sorted(draw.randint(0, len(raw)) for _ in range(2))
    return raw[:stop] + raw[start:stop] + raw[stop:]


BYTES: list[Callable[[random.Random, bytes], bytes]] = [flipped, cut, encoded, inserted, repeated]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key into it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def changed(draw: random.Random, value: Any) -> Any:
    """The value with one field of another type, missing, or added."""
    found = copy.deepcopy(value)
    holder, key = draw.choice(places(found) or [([found], 0)])
    way = draw.randrange(8)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder["unknown"] = draw.choice(ODD)
    elif way == 2:
        other, place = draw.choice(places(found))
        holder[key] = copy.deepcopy(other[place])
    else:
        holder[key] = draw.choice(ODD)
    return found


def as_json(draw: random.Random, value: Any) -> bytes:
    """JSON of it, at times with a key twice."""
    text = json.dumps(value)
    return (text.replace('{"', '{"id": 1, "id": 2, "', 1) if draw.random() < 0.05 else text).encode("utf-8")


FILES = {OSError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError}
OWN = {ValueError, TypeError, OtherKind, *FILES}
PACKAGE = str(Path(heta_lens.__file__).parent)
LONGEST = 1000


def fault(name: str, seed: int) -> str:
    """What a reader does wrong with one case, in one sentence; empty, if it reads or refuses it."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = reader.make(random.Random(f"{name} {seed}"), Path(folder))
        try:
            reader.use(path)
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
