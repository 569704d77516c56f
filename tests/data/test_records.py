"""Records of files and of the hub: every kind of file holds the same records; damaged files are refused by place."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from helpers.dataset_records import (
    NARRATIVES,
    PROSE,
    SENTENCES,
    WHY,
    science,
    unchecked,
    written,
)
from heta_lens.data.instance import read_jsonl
from heta_lens.data.records import read
from heta_lens.data.suites import HUB, suite

RECORDS = [{"a": "None", "b": [1, 2], "c": {"d": "é\u2028"}}, {"a": "", "b": [], "c": {"d": "2020-01-01"}}]


def test_files_of_every_kind_hold_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(RECORDS))
    (tmp_path / "object.json").write_text(json.dumps({"examples": RECORDS, "version": 1}))
    written(tmp_path / "lines.json", RECORDS)
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in RECORDS), "utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "table.parquet")
    for name in ("list.json", "object.json", "lines.json", "lines.jsonl", "table.parquet"):
        assert read(tmp_path / name, "x", field="examples") == RECORDS, name
    (tmp_path / "one.jsonl").write_text(json.dumps({"examples": RECORDS}))
    assert read(tmp_path / "one.jsonl", field="examples") == [{"examples": RECORDS}]


def test_a_csv_file_is_read_as_text(tmp_path: Path) -> None:
    rows = [WHY | {"answer": "None"}, WHY | {"answer": "NA", "helpful_sentences": [0, 1]}]
    with (tmp_path / "why.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*WHY], *([*row.values()] for row in rows)])
    assert [record["answer"] for record in read(tmp_path / "why.csv")] == ["None", "NA"]
    (instance,) = suite("tellmewhy", tmp_path / "why.csv")
    assert instance.words("support") == SENTENCES[:2]


@unchecked
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("why.jsonl", json.dumps(WHY | {"question_meta": 7}), "line 1: its question_meta is 7"),
        ("why.json", '[\n{"a": 1},\n{"a": 2\n]', "line 4, is not valid JSON"),
        ("why.jsonl", json.dumps(WHY).encode("utf-16"), "line 1, is not UTF-8, perhaps UTF-16: convert it"),
        ("why.jsonl", '{"a": 1}\n{"a": {"b": 1, "b": 2}}', r"line 2 on: two fields have the same name, of \['b', 'b"),
        ("why.jsonl", '{"a": NaN}', "line 1 on: NaN is no number of JSON: write null instead"),
        ("why.csv", "narrative,question\nKim left.,Why?,more\n", "line 2.*: it has 3 fields, and line 1 has 2"),
        ("why.csv", 'narrative,question\nA.,Why?\nB.,"Why?\nC.,Why?\n', "after 1 records: unexpected end of data"),
        ("why.csv", "narrative,narrative\nA.,B.\n", "line 2.*: two fields have the same name"),
        ("why.parquet", b"PAR1 is not enough PAR1", "is not a readable Parquet file: "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_by_its_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ValueError, TypeError), match=rf"^[^\n]*{name}.*{message}[^\n]*$") as caught:
        suite("tellmewhy", tmp_path / name)
    assert type(caught.value) in (ValueError, TypeError) and len(str(caught.value)) < 600


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("pipe.jsonl", "folder.jsonl"):
        for reader in (read, lambda path: list(read_jsonl(path))):
            with pytest.raises(FileNotFoundError, match=name):
                reader(tmp_path / name)


@unchecked
@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        ("a.txt", "", ValueError, r"a.txt' must end in one of .json, .jsonl, .csv, .parquet"),
        ("a.json", None, FileNotFoundError, "a.json' is not a file: give one with the records of Some"),
        ("a.json", "[]", ValueError, "a.json holds no records of"),
        ("a.json", '{"examples": {"a": 1}}', ValueError, "a.json holds no list of records"),
        ("a.json", '[{"a": 1}, 2]', ValueError, "a.json: record 1 is not an object but 2"),
    ],
)
def test_a_wrong_file_is_refused(
    file: str, content: str | None, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(kind, match=message):
        read(tmp_path / file, "Some", field="examples")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach it on the Hub (Offline)\nand more"),
        ValueError("Unknown split"),
        RuntimeError("Dataset scripts are no longer supported"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_out_of_reach_is_one_sentence_with_the_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    reason = re.escape(str(error).split("\n")[0])
    with pytest.raises(OSError, match=rf"^the dev split of StonyBrookNLP/tellmewhy .* \({reason}\): .*$"):
        suite("tellmewhy", split="dev")


def test_the_hub_is_asked_for_a_data_set_and_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    held = {
        HUB["tellmewhy"]: [WHY],
        HUB["wikibio"]: [PROSE],
        HUB["narratives"]: NARRATIVES,
        HUB["questions"]: [science()],
    }

    def load_dataset(name: str, _: None, split: str) -> Any:
        asked.append((name, split))
        return datasets.Dataset.from_list(held[name])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert suite("tellmewhy", split="validation")[0].words("support") == ["Kim was cold."]
    assert suite("wikibio")[0].text.startswith("J. Doe")
    assert suite("curated")[0].words("gold") == ["plants", "catch", "light"]
    assert asked == [
        (HUB["tellmewhy"], "validation"),
        (HUB["wikibio"], "evaluation"),
        (HUB["narratives"], "test"),
        (HUB["questions"], "test"),
    ]
