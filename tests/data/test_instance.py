"""Instances: their spans, and the JSON they are read from and written to."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from helpers.dataset_records import NINA, changed, unchecked
from heta_lens._util.text import Span
from heta_lens.data import recall
from heta_lens.data.instance import SPANS, Instance, read_jsonl, write_jsonl

ODD = 'Line one.\nA "quote", \u2028 a separator,\x0b\x1c\x85 more, é, 漢字, 🙂, \ttab.'


@pytest.mark.parametrize(
    "instance",
    [
        NINA,
        Instance(id="odd", text=ODD, answer=" \u2028x", support=(Span(0, len(ODD)),)),
        Instance(id="nested", text="a", answer=None, counterfactual=replace(NINA, id="deep")),
        *islice(recall.instances("dev", hops=2), 3),
    ],
    ids=lambda one: one.id,
)
def test_a_file_gives_back_what_was_written(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_jsonl(path, [instance, replace(instance, id="other")])
    back = list(read_jsonl(path))
    assert back == [instance, replace(instance, id="other")]
    assert [type(span) for one in back for name in SPANS for span in getattr(one, name)].count(Span) == sum(
        len(getattr(one, name)) for one in back for name in SPANS
    )
    assert path.read_bytes().count(b"\n") == 2


def test_a_file_written_elsewhere_is_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": "a", "text": "One", "answer": null, "support": null, "counterfactual": null}\r\n\r\n'
    )
    assert list(read_jsonl(path)) == [Instance(id="a", text="One", answer=None)]


@unchecked
@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"id": 12}, TypeError, "the id of an instance is 12, and must be text"),
        ({"text": " \n"}, ValueError, "the text of instance 'nina' is empty"),
        ({"text": "a \ud800"}, ValueError, "the text of instance 'nina' is not valid UTF-8 at character 2"),
        ({"gold": (3, 7)}, TypeError, "gold holds 3, not a pair"),
        ({"gold": [(True, 3)]}, TypeError, r"gold holds \(True, 3\)"),
        ({"support": [(3, 3)]}, ValueError, r"the span \(3, 3\) of support is not within its text"),
        ({"choices": [" trunk"]}, ValueError, "the answer ' drawer' is none of its choices, ' trunk'"),
    ],
)
def test_what_is_no_instance_is_refused(fields: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        changed(**fields)


@unchecked
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b", "text": "One", "answer": null, "glod": []}', "no field 'glod' .did you mean 'gold'..; it has id"),
        ('{"id": "b", "text": "One"}', "an instance needs answer"),
        ('{"id": "b", "text": null, "answer": null}', "the text of instance 'b' is None"),
        ("[1]", r"is not an object but \[1\]"),
        ('{"id": ', "is not valid JSON: Expecting value at character 8"),
        ('{"id": "b", "text": "One", "answer": null, "counterfactual": {"id": "c"}}', "an instance needs text, answer"),
        ('{"id": "a", "text": "One", "answer": null}', "its id 'a' is that of an earlier instance"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f'{{"id": "a", "text": "One", "answer": null}}\n\n{line}\n')
    with pytest.raises((TypeError, ValueError), match=f"some.jsonl, line 3.*{message}"):
        list(read_jsonl(path))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two instances have the id 'nina'"):
        write_jsonl(tmp_path / "some.jsonl", [NINA, NINA])
    assert not (tmp_path / "some.jsonl").exists()
    with pytest.raises(OSError, match=r"cannot write .*nowhere.some.jsonl: No such file or directory"):
        write_jsonl(tmp_path / "nowhere" / "some.jsonl", [NINA])
    with pytest.raises(FileNotFoundError, match=r"there is no file .*other.jsonl: give one with an instance per line"):
        list(read_jsonl(tmp_path / "other.jsonl"))
