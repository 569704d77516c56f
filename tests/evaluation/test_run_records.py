"""Records are kept whole, whatever happens while they are written."""

import json
from math import inf, nan
from pathlib import Path

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
def test_a_line_cut_short_is_set_aside(tmp_path: Path, kept: int) -> None:
    append(tmp_path, record("a"))
    whole = (tmp_path / RECORDS).read_bytes()
    append(tmp_path, record("b"))
    torn = lines(tmp_path)[1][:kept]
    (tmp_path / RECORDS).write_bytes(whole + torn)
    assert read_records(tmp_path) == [record("a")]  # a report may be written meanwhile
    with pytest.warns(UserWarning, match="it was cut short"):
        assert repair(tmp_path) == len(torn)
    assert (tmp_path / RECORDS).read_bytes() == whole
    assert repair(tmp_path) == 0
    append(tmp_path, record("b"))
    assert read_records(tmp_path) == [record("a"), record("b")]


def test_the_only_line_may_be_cut_short(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_bytes(b'{"instance": "a')
    assert read_records(tmp_path) == []
    with pytest.warns(UserWarning, match="it was cut short"):
        assert repair(tmp_path) == 15
    assert lines(tmp_path) == []


def test_a_torn_line_that_was_written_after_is_set_aside(tmp_path: Path) -> None:
    append(tmp_path, record("a"))
    with open(tmp_path / RECORDS, "ab") as file:
        file.write(b'{"instance": "b", "met')
    append(tmp_path, record("c"))
    with pytest.warns(UserWarning, match="1 of 2 lines of .*records.jsonl are not records .line 2: "):
        assert read_records(tmp_path) == [record("a")]
    with pytest.warns(UserWarning, match="moved to records.rejected.jsonl"):
        assert repair(tmp_path) > 0
    assert read_records(tmp_path) == [record("a")]
    assert len(lines(tmp_path)) == 1


METRIC = {"low": -1.0, "high": 1.0}
RATIO = {"low": None, "high": None, "aggregate": "log_ratio"}
FIELDS = {"instance": "b", "method": "heta", "values": {"dsa": 0.5}}
BAD = {
    "cut short": (b'{"instance": "b", "met', "Unterminated string"),
    "no method": (b'{"instance": "b"}', "it has no method"),
    "unknown": (json.dumps(FIELDS | {"weather": 1}).encode(), "unknown field 'weather'"),
    "NaN": (b'{"instance": "b", "method": "heta", "values": {"dsa": NaN}}', "NaN is not a number of JSON"),
    "overflow": (b'{"instance": "b", "method": "heta", "values": {"dsa": 1e999}}', "1e999 is too large"),
    "digits": (b'{"instance": "b", "method": "heta", "tokens": ' + b"9" * 5000 + b"}", "has 5000 digits"),
    "text": (json.dumps(FIELDS | {"values": {"dsa": "high"}}).encode(), "its values is .* and must be an object of"),
    "no object": (json.dumps(FIELDS | {"values": 5}).encode(), "its values is 5, and must be an object"),
    "true": (json.dumps(FIELDS | {"values": {"dsa": True}}).encode(), "its values is"),
    "failed": (json.dumps(FIELDS | {"failed": 5}).encode(), "its failed is 5, and must be text"),
    "degenerate": (
        json.dumps(FIELDS | {"degenerate": "dsa"}).encode(),
        "its degenerate is 'dsa', and must be a list of text",
    ),
    "negative": (json.dumps(FIELDS | {"seconds": -1.0}).encode(), "its seconds is -1.0, and must be at least 0"),
    "certain": (json.dumps(FIELDS | {"log_prob": 0.5}).encode(), "its log_prob is 0.5, and must be at most 0"),
    "list": (b"[]", r"it is \[\], and must be an object"),
    "deep": (b"[" * 100_000, "more than 64 levels deep"),
    "less deep": (b"[" * 70 + b"]" * 70, "more than 64 levels deep"),
    "encoding": (b'{"instance": "b\xe9", "method": "heta"}', "not UTF-8 at byte 16"),
    "half a pair": (b'{"instance": "b\\ud83d", "method": "heta"}', "half of a surrogate pair"),
    "twice": (b'{"instance": "b", "method": "heta", "method": "lime"}', "the key 'method' is there twice"),
    "above": (json.dumps(FIELDS | {"values": {"dsa": 1.5}}).encode(), "its dsa is 1.5, beyond the high bound 1"),
    "below": (json.dumps(FIELDS | {"values": {"dsa": -3}}).encode(), "its dsa is -3, beyond the low bound -1"),
    "two": (json.dumps(FIELDS | {"values": {"dsa": [0.5, 0.5]}}).encode(), "its dsa is .* and must be 1 number"),
    "empty": (json.dumps(FIELDS | {"values": {"dsa": []}}).encode(), r"its dsa is \[\], and must be 1 number"),
    "empty pair": (json.dumps(FIELDS | {"values": {"nc": []}}).encode(), r"its nc is \[\], and must be 2 numbers"),
    "negative own": (json.dumps(FIELDS | {"values": {"nc": [-1, 2]}}).encode(), r"its nc is \[-1, 2\], .* at least 0"),
    "negative random": (json.dumps(FIELDS | {"values": {"nc": [1, -2.5]}}).encode(), "its nc is .* be at least 0"),
    "of a later version": (json.dumps(FIELDS | {"mood": "good"}).encode(), "unknown field 'mood'"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("line", "reason"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "last"])
def test_a_line_that_is_no_record_is_set_aside_wherever_it_stands(
    tmp_path: Path, line: bytes, reason: str, at: int
) -> None:
    (tmp_path / RUN).write_text(json.dumps({"metrics": {"dsa": METRIC, "nc": RATIO}}))
    append(tmp_path, record("a"))
    append(tmp_path, record("c"))
    whole = lines(tmp_path)
    written = b"".join([*whole[:at], line + b"\n", *whole[at:]])
    (tmp_path / RECORDS).write_bytes(written)
    with pytest.warns(
        UserWarning, match=rf"^1 of 3 lines of .*records.jsonl are not records .line {at + 1}: .*{reason}"
    ):
        assert read_records(tmp_path) == [record("a"), record("c")]
    assert (tmp_path / RECORDS).read_bytes() == written and not (
        tmp_path / REJECTED
    ).exists()  # reading changes nothing
    with pytest.warns(
        UserWarning, match=rf"line {at + 1}: .*moved to records.rejected.jsonl: their work is done again"
    ):
        assert repair(tmp_path) == len(line) + 1
    assert lines(tmp_path) == whole
    assert (tmp_path / REJECTED).read_bytes() == line + b"\n"
    assert read_records(tmp_path) == [record("a"), record("c")]
    assert repair(tmp_path) == 0


def test_rejected_lines_are_kept_from_every_resume(tmp_path: Path) -> None:
    for line in (b"first\n", b"second\n"):
        with open(tmp_path / RECORDS, "ab") as file:
            file.write(line)
        with pytest.warns(UserWarning, match="1 of 1 lines"):
            repair(tmp_path)
    assert (tmp_path / REJECTED).read_bytes() == b"first\nsecond\n"


def test_a_value_may_be_beyond_a_bound_by_rounding(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(json.dumps({"metrics": {"dsa": METRIC, "nc": RATIO}}))
    for one in (
        record("a", value=1.00001),
        Record("b", "heta", values={"nc": [7.0, 9.0], "unknown": 99.0}),
        Record("c", "heta", values={"nc": [0.0, 0.0], "dsa": None}),
    ):
        append(tmp_path, one)
    assert len(read_records(tmp_path)) == 3


def test_a_line_with_the_mark_of_an_editor_is_read(tmp_path: Path) -> None:
    append(tmp_path, record("a"))
    (tmp_path / RECORDS).write_bytes(b"\xef\xbb\xbf" + lines(tmp_path)[0])
    assert read_records(tmp_path) == [record("a")]


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
    (tmp_path / RUN).write_text(json.dumps({"suite": "recall"}))
    assert read_run(tmp_path) == {"suite": "recall"}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"suite": ', "Expecting value at character 11"),
        (b"[]", r"it is \[\], and must be an object"),
        (b'{"methods": []}', r"its methods is \[\], and must be an object of an object"),
        (b'{"methods": {"heta": {"method": 5}}}', "the method 'heta': its method is 5, and must be text"),
        (b'{"methods": {"heta": {}}}', "the method 'heta': its method is None, and must be text"),
        (b'{"metrics": {"dsa": {"low": "0"}}}', "the metric 'dsa': its low is '0', and must be a number or null"),
        (b'{"instances": "9"}', "its instances is '9', and must be a whole number"),
        (b'{"seed": 1, "seed": 2}', "the key 'seed' is there twice"),
        (b'{"seed": ' + b"[" * 100_000, "more than 64 levels deep"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "has 5000 digits"),
        (b'{"suite": "caf\xe9"}', r"line 1, is not UTF-8 .byte 0xe9., perhaps Latin-1: convert it"),
        ('{"suite": "x"}'.encode("utf-16"), "not UTF-8 but UTF-16"),
        ('{"suite": "x"}'.encode("utf-16-le"), "NUL byte, perhaps as UTF-16"),
    ],
)
def test_a_damaged_run_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / RUN).write_bytes(content)
    with pytest.raises(ValueError, match=rf"run\.json is damaged \(.*{reason}.*\): begin again in another folder"):
        read_run(tmp_path)
