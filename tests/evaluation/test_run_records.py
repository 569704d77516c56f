"""Records and requests are read strictly, and whole records survive damage."""

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from heta_lens.evaluation.run_folder import RECORDS, RUN, Record, append, read_records, read_run, repair

REJECTED = "records.rejected.jsonl"
FULL = Record(
    "story-1",
    "lime samples=80",
    "told",
    values={"dsa": 0.5, "soft_nc": [0.25, 0.125], "f1": None},
    reasons={"f1": "no gold words, « | \n »"},
    degenerate=["dsa"],
    tokens=12,
    correct=True,
    options={"samples": 80},
    seconds=0.1,
    forwards=80,
    backwards=2,
    versions={"torch": "2.6"},
    log_prob=-0.25,
)
METRICS = {
    "dsa": {"low": -1.0, "high": 1.0},
    "nc": {"low": None, "high": None, "aggregate": "log_ratio"},
}


def record(instance: str, method: str = "heta", value: float = 0.5) -> Record:
    return Record(instance, method, values={"dsa": value})


def lines(folder: Path) -> list[bytes]:
    return (folder / RECORDS).read_bytes().splitlines(keepends=True)


def test_records_are_read_as_written_in_order_and_the_last_of_a_pair_counts(tmp_path: Path) -> None:
    assert read_records(tmp_path) == [] and repair(tmp_path) == 0
    for each in (FULL, record("b", "lime"), record("a", "lime", 0.1), record("b"), record("a", "lime", 0.9)):
        append(tmp_path, each)
    assert read_records(tmp_path) == [record("a", "lime", 0.9), record("b"), record("b", "lime"), FULL]
    assert len(lines(tmp_path)) == 5


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_line_cut_short_is_set_aside(tmp_path: Path, kept: int) -> None:
    append(tmp_path, record("a"))
    whole = (tmp_path / RECORDS).read_bytes()
    append(tmp_path, record("b"))
    torn = lines(tmp_path)[1][:kept]
    (tmp_path / RECORDS).write_bytes(whole + torn)
    assert read_records(tmp_path) == [record("a")]  # a report may be written meanwhile
    with pytest.warns(UserWarning, match="it was cut short"):
        assert repair(tmp_path) == len(torn)
    assert (tmp_path / RECORDS).read_bytes() == whole and repair(tmp_path) == 0
    append(tmp_path, record("b"))
    assert read_records(tmp_path) == [record("a"), record("b")]


BAD: list[tuple[Any, str]] = [
    ([], r"it is \[\], and must be an object"),
    ({"instance": "b", "method": None}, "its method is None, and must be text"),
    ({"weather": 1}, "unknown field 'weather'"),
    ({"values": {"dsa": "high"}}, "its values is .* and must be an object of"),
    ({"seconds": -1.0}, "its seconds is -1.0, and must be at least 0"),
    ({"log_prob": 0.5}, "its log_prob is 0.5, and must be at most 0"),
    ({"values": {"dsa": 1.5}}, "its dsa is 1.5, beyond the high bound 1"),
    ({"values": {"dsa": [0.5, 0.5]}}, "its dsa is .* and must be 1 number"),
    ({"values": {"nc": [-1, 2]}}, r"its nc is \[-1, 2\], .* at least 0"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("fields", "reason"), BAD)
@pytest.mark.parametrize("at", [0, 2], ids=["first", "last"])
def test_a_line_that_is_no_record_is_set_aside(tmp_path: Path, fields: Any, reason: str, at: int) -> None:
    (tmp_path / RUN).write_text(json.dumps({"metrics": METRICS}))
    append(tmp_path, record("a"))
    append(tmp_path, record("c"))
    whole = lines(tmp_path)
    bad = json.dumps({"instance": "b", "method": "heta", **fields} if fields else fields).encode() + b"\n"
    written = b"".join([*whole[:at], bad, *whole[at:]])
    (tmp_path / RECORDS).write_bytes(written)
    with pytest.warns(
        UserWarning, match=rf"^1 of 3 lines of .*records.jsonl are not records .line {at + 1}: .*{reason}"
    ):
        assert read_records(tmp_path) == [record("a"), record("c")]
    assert (tmp_path / RECORDS).read_bytes() == written and not (tmp_path / REJECTED).exists()
    with pytest.warns(UserWarning, match=rf"line {at + 1}: .*moved to records.rejected.jsonl"):
        assert repair(tmp_path) == len(bad)
    assert lines(tmp_path) == whole and (tmp_path / REJECTED).read_bytes() == bad
    assert read_records(tmp_path) == [record("a"), record("c")] and repair(tmp_path) == 0


@pytest.mark.parametrize("value", [nan, inf, -inf, [0.5, nan], (inf, 1.0)])
def test_values_that_are_not_finite_are_refused(value: float | list[float]) -> None:
    with pytest.raises(ValueError, match=r"dsa of 'heta' on 'a' is .*finite, or None with a reason"):
        Record("a", "heta", values={"fine": 1.0, "dsa": value})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"suite": ', "Expecting value at character 11"),
        (b'{"methods": {"heta": {}}}', "the method 'heta': its method is None, and must be text"),
        (b'{"metrics": {"dsa": {"low": "0"}}}', "the metric 'dsa': its low is '0', and must be a number or null"),
        (b'{"suite": "caf\xe9"}', r"line 1, is not UTF-8 .byte 0xe9., perhaps Latin-1"),
    ],
)
def test_a_damaged_request_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match="holds no evaluation: heta-lens evaluate"):
        read_run(tmp_path)
    (tmp_path / RUN).write_bytes(content)
    with pytest.raises(ValueError, match=rf"run\.json is damaged \(.*{reason}.*\): begin again in another folder"):
        read_run(tmp_path)
