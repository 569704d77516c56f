"""What a command says of prompts that failed."""

from pathlib import Path
from typing import Any

import pytest
import typer

from heta_lens.cli.flags import print_failures
from heta_lens.evaluation.run_folder import Record, append


def said(folder: Path, capsys: pytest.CaptureFixture[str], *records: dict[str, Any]) -> tuple[int, str]:
    for number, fields in enumerate(records):
        append(folder, Record(f"story-{number}", "heta", **fields))
    try:
        print_failures(folder, "nothing was explained")
    except typer.Exit as left:
        return left.exit_code, capsys.readouterr().err
    return 0, capsys.readouterr().err


def test_scores_without_metrics_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(tmp_path, capsys, {}, {}) == (0, "")


def test_the_most_frequent_failure_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(tmp_path, capsys, {"failed": "no"}, {"failed": "yes"}, {"failed": "no"}, {"values": {"dsa": 1.0}})
    assert (code, text) == (0, "3 of 4 failed, most often (2) by: no\n")


def test_nothing_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(tmp_path, capsys, {"failed": "no"})
    assert code == 1 and text == "1 of 1 failed, most often (1) by: no\nnothing was explained\n"


def test_metrics_without_values_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(tmp_path, capsys, {"values": {"dsa": None}, "reasons": {"dsa": "no gold words"}})
    assert code == 1 and text == "nothing was explained: no gold words\n"


def test_prompts_that_a_method_does_not_apply_to_are_counted_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(tmp_path, capsys, {"skipped": "no contrast"}, {"failed": "no luck"})
    assert (
        code == 1 and "1 of 2 failed, most often (1) by: no luck\n1 of 2 skipped, most often (1) by: no contr" in text
    )
