"""What inseq and captum made is read as it was meant."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.saved_by_others import INSEQ, PROMPT
from heta_lens.evaluation.external_scores import from_captum, from_inseq, is_inseq, write_scores


def changed(folder: Path, **fields: Any) -> Path:
    saved = json.loads(INSEQ.read_text())
    saved["attributes"]["sequence_attributions"][0]["attributes"] |= fields
    (folder / "changed.json").write_text(json.dumps(saved))
    return folder / "changed.json"


def test_inseqs_scores_are_those_of_the_prompts_tokens() -> None:
    (record,) = from_inseq(INSEQ)
    assert record["text"].removeprefix("<bos> ") == PROMPT and record["method"] == "inseq input_x_gradient"
    assert record["ids"][:3] == [1, 79, 367] and len(record["ids"]) == len(record["scores"]) == 32
    texts = [record["text"][slice(*ends)] for ends in zip(record["start"], record["stop"], strict=True)]
    assert texts[1:4] == ["The", " whistle", " of"]
    assert record["scores"][-1] == pytest.approx(0.0196, abs=1e-2)


def test_every_generated_token_is_a_record_of_its_own(tmp_path: Path) -> None:
    scores = np.arange(66.0).reshape(33, 2)
    written = {"__ndarray__": scores.tolist(), "dtype": "float64", "shape": [33, 2]}
    first, second = from_inseq(changed(tmp_path, target_attributions=written, attr_pos_start=31, attr_pos_end=33))
    assert len(first["ids"]) == 31 and first["scores"] == scores[:31, 0].tolist()
    assert len(second["ids"]) == 32 and second["scores"] == scores[:32, 1].tolist()
    assert second["text"].startswith(first["text"])


def test_scores_per_dimension_are_refused(tmp_path: Path) -> None:
    written = {"__ndarray__": np.zeros((33, 1, 4)).tolist(), "dtype": "float32", "shape": [33, 1, 4]}
    with pytest.raises(ValueError, match=r"inseq's scores have 3 dimensions.* save them aggregated, as out\.aggregate"):
        from_inseq(changed(tmp_path, target_attributions=written))
    with pytest.raises(ValueError, match="encoder–decoder"):
        from_inseq(changed(tmp_path, source_attributions=written))


def test_inseqs_files_are_recognised() -> None:
    assert is_inseq(INSEQ.read_bytes()) and not is_inseq(b'[{"scores": [1]}]')


def test_captums_result_is_a_record(tmp_path: Path) -> None:
    result = SimpleNamespace(
        input_tokens=[" a", " b"],
        output_tokens=[" c", " d"],
        seq_attr=torch.tensor([[0.5, 1.0]]),
        token_attr=torch.tensor([[0.1, 0.2], [0.4, 0.8]]),
    )
    whole, last = from_captum(result, "a b"), from_captum(result, "a b", method="fa", step=1)
    assert whole == {"method": "captum", "text": "a b", "tokens": [" a", " b"], "scores": [0.5, 1.0]}
    assert (last["method"], last["target"]) == ("fa", " d") and last["scores"] == pytest.approx([0.4, 0.8])
    write_scores(tmp_path / "s.jsonl", [whole, last])
    assert [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()] == [whole, last]
