"""``heta-lens fit-at2`` writes weights that the method takes."""

from pathlib import Path

import pytest

from helpers.evaluating import run
from heta_lens.methods.at2 import HeadWeights


@pytest.mark.slow
def test_weights_are_fitted_and_used(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    fitted = run("fit-at2", "recall", "--split", "train", "--limit", "2", "--samples", "4", "--out", file)
    assert fitted.exit_code == 0 and "correlate by" in fitted.output and str(file) in fitted.output.replace("\n", "")
    assert HeadWeights.load(file).fitted["prompts"] == 2
    used = run("attribute", "Leo put the key in the box.", "--method", "at2", "-o", f"weights={file}")
    assert used.exit_code == 0 and "at2: why" in used.output


def test_a_folder_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    refused = run("fit-at2", "recall", "--limit", "2", "--out", tmp_path / "no" / "w.safetensors")
    assert refused.exit_code == 2 and "no" in refused.output
