"""Records are kept whole, whatever happens while they are written."""

import json
from math import inf, nan
from pathlib import Path

import pytest

from heta_lens.evaluation.records import RECORDS, RUN, Record, append, read_records, read_run, repair

pytestmark = pytest.mark.plain

FULL = Record(
    "story-1",
    "lime samples=80",
    "told",
    values={"dsa": 0.5, "soft_nc": [0.25, 0.125], "f1": None},
    reasons={"f1": "no gold words, « | \n »"},
    doubts=["dsa"],
    tokens=12,
    correct=True,
    options={"samples": 80},
    seconds=0.1,
    forwards=80,
    backwards=2,
    versions={"torch": "2.6"},
)


def record(instance: str, method: str = "heta", value: float = 0.5) -> Record:
    return Record(instance, method, values={"dsa": value})


def lines(folder: Path) -> list[bytes]:
    return (folder / RECORDS).read_bytes().splitlines(keepends=True)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    append(tmp_path, FULL)
    assert read_records(tmp_path) == [FULL]
    assert len(lines(tmp_path)) == 1


def test_records_come_in_the_order_of_instances_and_methods(tmp_path: Path) -> None:
    for one in (record("b", "lime"), record("a", "lime"), record("b", "heta")):
        append(tmp_path, one)
    assert [one.key for one in read_records(tmp_path)] == [("a", "lime"), ("b", "heta"), ("b", "lime")]


def test_what_was_done_again_counts(tmp_path: Path) -> None:
    append(tmp_path, record("a", value=0.1))
    append(tmp_path, record("a", value=0.9))
    assert [one.values for one in read_records(tmp_path)] == [{"dsa": 0.9}]


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []
    assert repair(tmp_path) == 0


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_cut_short_is_taken_away(tmp_path: Path, kept: int) -> None:
    append(tmp_path, record("a"))
    whole = (tmp_path / RECORDS).read_bytes()
    append(tmp_path, record("b"))
    torn = lines(tmp_path)[1][:kept]
    (tmp_path / RECORDS).write_bytes(whole + torn)
    assert read_records(tmp_path) == [record("a")]  # a report may be written meanwhile
    assert repair(tmp_path) == len(torn)
    assert (tmp_path / RECORDS).read_bytes() == whole
    assert repair(tmp_path) == 0
    append(tmp_path, record("b"))
    assert read_records(tmp_path) == [record("a"), record("b")]


def test_the_only_line_may_be_cut_short(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(b'{"instance": "a')
    assert read_records(tmp_path) == []
    assert repair(tmp_path) == 15
    assert lines(tmp_path) == []


def test_a_torn_line_that_was_written_after_is_taken_away_too(tmp_path: Path) -> None:
    append(tmp_path, record("a"))
    with open(tmp_path / RECORDS, "ab") as file:
        file.write(b'{"instance": "b", "met')
    append(tmp_path, record("c"))
    assert read_records(tmp_path) == [record("a")]
    assert repair(tmp_path) > 0
    assert read_records(tmp_path) == [record("a")]
    assert len(lines(tmp_path)) == 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "line",
    [
        b'{"instance": "b", "met',
        b'{"instance": "b"}',
        b'{"instance": "b", "method": "heta", "weather": 1}',
        b'{"instance": "b", "method": "heta", "values": {"dsa": NaN}}',
        b'{"instance": "b", "method": "heta", "values": {"dsa": "high"}}',
        b"[]",
    ],
)
def test_a_line_in_the_middle_that_is_no_record_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    append(tmp_path, record("a"))
    append(tmp_path, record("c"))
    first, last = lines(tmp_path)
    (tmp_path / RECORDS).write_bytes(first + line + b"\n" + last)
    before = lines(tmp_path)
    with pytest.raises(ValueError, match=r"records.jsonl, line 2, is no record .*take the line away"):
        read_records(tmp_path)
    assert repair(tmp_path) == 0
    assert lines(tmp_path) == before


def test_a_last_line_that_is_whole_but_no_record_is_not_thrown_away(tmp_path: Path) -> None:
    append(tmp_path, record("a"))
    with open(tmp_path / RECORDS, "ab") as file:
        file.write(b'{"instance": "b", "method": "heta", "of_a_later_version": 1}\n')
    assert repair(tmp_path) == 0
    with pytest.raises(ValueError, match="line 2"):
        read_records(tmp_path)


@pytest.mark.parametrize("value", [nan, inf, -inf, [0.5, nan], (inf, 1.0)])
def test_values_that_are_not_finite_are_refused(value: float | list[float]) -> None:
    with pytest.raises(ValueError, match=r"dsa of 'heta' on 'a' is .*finite, or None and its reason"):
        Record("a", "heta", values={"fine": 1.0, "dsa": value})


def test_nothing_is_written_of_a_record_that_json_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError)):
        append(tmp_path, Record("a", "heta", options={"threshold": nan}))
    assert not (tmp_path / RECORDS).exists()


def test_a_folder_without_an_evaluation_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no evaluation: heta-lens evaluate"):
        read_run(tmp_path)
    (tmp_path / RUN).write_text('{"suite": ')
    with pytest.raises(ValueError, match=r"run\.json is damaged .*another folder"):
        read_run(tmp_path)
    (tmp_path / RUN).write_text(json.dumps({"suite": "recall"}))
    assert read_run(tmp_path) == {"suite": "recall"}
