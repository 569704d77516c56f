"""Prompts come from suites, files, data sets and Python; what is none is refused with the way out."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from heta_lens.data.instance import Instance
from heta_lens.data.suites import prompts

ROWS = [{"id": "a", "text": "One two", "answer": " three"}, {"id": "b", "text": "Four", "answer": None}]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def written(folder: Path, suffix: str) -> Path:
    path, frame = folder / f"rows{suffix}", pd.DataFrame(ROWS)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json", ".jsonl"])
@pytest.mark.parametrize("kind", [str, Path])
def test_every_format_gives_the_same_prompts(kind: Any, suffix: str, tmp_path: Path) -> None:
    assert prompts(kind(written(tmp_path, suffix))) == [Instance("a", "One two", " three"), Instance("b", "Four", None)]


def test_columns_with_other_names(tmp_path: Path) -> None:
    path = tmp_path / "questions.csv"
    path.write_text("question,label,other\nWhere is it?, here,1\nWho?,,2\n")
    expected = [Instance("questions-0", "Where is it?", " here"), Instance("questions-1", "Who?", None)]
    assert prompts(path, fields={"text": "question", "answer": "label"}) == expected
    assert prompts(path, fields={"text": "question"}, limit=1) == [Instance("questions-0", "Where is it?", None)]


def test_a_suite_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recall").mkdir()
    assert len(prompts("recall", limit=3, seed=1, hops=2)) == 3


def test_a_data_set_in_a_folder_is_streamed(tmp_path: Path) -> None:
    written(tmp_path, ".jsonl")
    assert [instance.id for instance in prompts(f"hf:{tmp_path}", limit=1)] == ["a"]
    assert [instance.id for instance in prompts(f"hf:{tmp_path}", split="train")] == ["a", "b"]
    with pytest.raises(OSError, match=r"the dev split of .* could not be read"):
        prompts(f"hf:{tmp_path}", split="dev")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("recal", {}, r"'recal' is no source of prompts \(did you mean 'recall'\?\): give one of recall, "),
        ("p.txt", {}, r"'p.txt' is no source of prompts: give one of .*a file that ends in .jsonl"),
        ([], {}, "there are no prompts in prompt"),
        (["x", {"question": "x"}], {}, "prompt 1: it has no text, but 'question': .* --field text=question"),
        ([{"question": "x"}], {"fields": {"text": "qestion"}}, "no column 'qestion' for .*did you mean 'question'"),
        (["x"], {"hops": 2}, "hops= is an option of a suite, and prompt is none"),
        (CHAT, {}, "is one prompt: put it into a list"),
        ("recall", {"fields": {"text": "x"}}, "fields=.* has no effect: the suite is read by its own fields"),
        ([{"messages": CHAT, "gold": [[0, 2]]}], {}, "has gold, but none of its messages says its text"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_source_is_refused(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        prompts(source, **options)


def test_the_line_of_a_wrong_prompt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "x"}\n{"txt": "y"}\n{"txt": "z"}\n')
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2: it has no text, but 'txt'"):
        prompts(path)
