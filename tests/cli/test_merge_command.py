"""``heta-lens merge``: shards of commands make one folder."""

from pathlib import Path

import pytest

from helpers.evaluating import run
from heta_lens.evaluation.saved_scores import load_scores


@pytest.mark.slow
def test_shards_of_two_commands_are_merged(tmp_path: Path) -> None:
    out = str(tmp_path / "o")
    command = "attribute-dataset", "recall", "--limit", "3", "-m", "recency", "--out", out
    first = run(*command, "--shard", "0/2")
    assert first.exit_code == 0 and "shard-0-of-2" in first.output, first.output
    missing = run("merge", out)
    assert missing.exit_code == 2 and "shard 1/2 is missing" in missing.output
    assert run(*command, "--shard", "1/2").exit_code == 0
    merged = run("merge", out)
    assert merged.exit_code == 0 and f"3 results of methods on prompts: {out}" in merged.output.replace("\n", "")
    assert len(load_scores(out)) == 3
    report = run("report", out)
    assert report.exit_code == 2 and "holds scores and no metrics" in report.output
