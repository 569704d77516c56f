"""Files written elsewhere, read strictly: what cannot be read is refused in one sentence that names the place."""

import os
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from heta_lens._util.files import (
    DEEPEST,
    NotJSON,
    brief,
    check_utf8,
    decoded,
    numbered_lines,
    parse_json,
    read_text,
    regular_file,
)


def test_a_mark_before_the_text_is_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(BOM_UTF8 + "a\nß".encode())
    assert read_text(tmp_path / "marked") == "a\nß"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("a".encode("utf-16"), "file, line 1, is not UTF-8 but UTF-16: convert it, as by iconv -f UTF-16 -t UTF-8"),
        (b"a\n\xdf", r"file, line 2, is not UTF-8 \(byte 0xdf\), perhaps Latin-1"),
        (b"a\n\nb\0", "file, line 3, has a NUL byte, perhaps as UTF-16"),
    ],
)
def test_another_encoding_is_named_with_its_line(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded(raw, "file")


def test_what_is_no_regular_file_is_called_by_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe: give a regular file"):
        regular_file(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a folder: give a regular file"):
        regular_file(tmp_path)
    with pytest.raises(FileNotFoundError, match="no records yet"):
        regular_file(tmp_path / "nothing", missing="no records yet")


def test_lines_are_counted_from_1_and_broken_at_newlines_only() -> None:
    assert list(numbered_lines("a\u2028b\n \n\nc")) == [(1, "a\u2028b"), (4, "c")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ("NaN", "NaN is not a number of JSON"),
        ("1e999", "the number 1e999 is too large"),
        ("9" * 5000, "the number 99999999999999999999… has 5000 digits, more than"),
        ("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), f"it nests more than {DEEPEST} levels deep"),
        (r'["\ud800"]', "has half of a surrogate pair, which is not a character"),
    ],
    ids=["twice", "nan", "overflow", "digits", "deep", "surrogate"],
)
def test_json_that_a_reader_cannot_stand_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None]}, "😀", [[[]]]], ids=str)
def test_other_json_is_read(value: Any) -> None:
    assert parse_json(repr(value).replace("'", '"').replace("None", "null")) == value
    assert parse_json(r'"\ud800"', halves=True) == "\ud800"


def test_text_that_is_no_json_is_refused_with_its_place() -> None:
    with pytest.raises(NotJSON, match="at character 4") as refused:
        parse_json("[1,]")
    assert refused.value.position == 3


def test_what_no_file_can_hold_is_refused_with_its_place() -> None:
    check_utf8("the text", "ß")
    with pytest.raises(ValueError, match="the text is not valid UTF-8 at character 1"):
        check_utf8("the text", "a\udcff")


def test_a_value_is_shown_on_one_line_and_cut_short() -> None:
    assert brief("a\nb") == r"'a\nb'"
    assert len(brief("x" * 10_000)) <= 80
