"""A file of JSON lines is appended to whole, read despite damage, and repaired."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heta_lens._util.files import JsonLinesFile


def number(value: Mapping[str, Any]) -> int:
    if "n" not in value:
        raise ValueError("it has no n")
    return value["n"]


def lines(folder: Path) -> JsonLinesFile[int]:
    return JsonLinesFile(folder / "numbers.jsonl", number, "numbers", "write them again")


def test_what_was_appended_is_read_in_its_order(tmp_path: Path) -> None:
    for n in (3, 1, 2):
        lines(tmp_path).append({"n": n, "text": "\u2028 | \n \udc80"})
    assert lines(tmp_path).read() == [3, 1, 2]
    assert lines(tmp_path).repair() == 0


def test_a_file_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert lines(tmp_path).read() == [] and lines(tmp_path).repair() == 0


@pytest.mark.parametrize("bad", [b"{", b"[1]", b'{"m": 1}', b'{"n": NaN}', b"\xff\xfe"])
def test_a_damaged_line_is_skipped_and_then_set_aside(bad: bytes, tmp_path: Path) -> None:
    file = lines(tmp_path)
    file.append({"n": 1})
    with file.path.open("ab") as raw:
        raw.write(bad + b"\n")
    file.append({"n": 2})
    with pytest.warns(UserWarning, match=r"1 of 3 lines of .* are not numbers \(line 2: .*\) and are skipped: write"):
        assert file.read() == [1, 2]
    with pytest.warns(UserWarning, match=r"moved to numbers\.rejected\.jsonl"):
        assert file.repair() == len(bad) + 1
    assert file.read() == [1, 2] and file.rejected.read_bytes() == bad + b"\n"


def test_a_last_line_without_an_end_is_not_read_and_then_set_aside(tmp_path: Path) -> None:
    file = lines(tmp_path)
    file.append({"n": 1})
    with file.path.open("ab") as raw:
        raw.write(b'{"n": 2')
    assert file.read() == [1]
    with pytest.warns(UserWarning, match=r"1 of 2 lines .* \(line 2: it was cut short\) and are moved to"):
        assert file.repair() == 7
    assert file.read() == [1] and file.rejected.read_bytes() == b'{"n": 2\n' and file.repair() == 0


def test_lines_are_replaced_at_once(tmp_path: Path) -> None:
    file = lines(tmp_path)
    file.append({"n": 1})
    file.replace({"n": n} for n in (5, 6))
    assert file.read() == [5, 6]
    file.replace([])
    assert file.read() == []
