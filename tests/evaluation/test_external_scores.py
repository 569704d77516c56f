"""Scores of other tools are read, and evaluated beside the methods of this package."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import heta_lens
from helpers import ROOT
from helpers.evaluating import demo, run
from heta_lens._util.text import Span
from heta_lens.data.instance import Instance, write_jsonl
from heta_lens.evaluation.external_scores import (
    external_methods,
    from_captum,
    from_inseq,
    shared_out,
    write_scores,
)
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.run_database import read_records
from heta_lens.metrics.robustness import again
from heta_lens.model.loading import DEMO

INSEQ = ROOT / "tests" / "helpers" / "inseq_saved.json"  # by inseq 0.6: ``out.aggregate().save(path)``
PROMPT = (
    "The whistle of Tom was placed in the cradle. The ladder of Enzo was placed in the cooker. "
    "Claim: It was Enzo that put the ladder in the"
)


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


STORY = Instance("story", PROMPT, " cooker", gold=(Span(69, 73), Span(88, 94)))


def written(folder: Path, *records: dict[str, Any], name: str = "given.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / name


def scores_on(path: Path, instance: Instance = STORY) -> Any:
    prediction = ask(demo(), instance)
    (method,) = external_methods(path)
    return method.ready(instance, prediction)(prediction)


def test_the_same_tokens_have_the_same_scores(tmp_path: Path) -> None:
    ids = ask(demo(), STORY).ids.tolist()
    given = [number / 7 for number in range(len(ids))]
    made = scores_on(written(tmp_path, {"ids": ids, "scores": given, "prompt": "story"}))
    assert made.scores.tolist() == given and made.method == "given" and not made.signed


def test_words_are_shared_out_on_the_tokens_they_consist_of(tmp_path: Path) -> None:
    words = PROMPT.split()
    made = scores_on(written(tmp_path, {"text": PROMPT, "tokens": words, "scores": [1.0] * len(words), "method": "me"}))
    assert made.method == "me" and float(made.scores.sum()) == pytest.approx(len(words))
    (row,) = [row for row, token in enumerate(made.tokens) if token == " cradle"]
    assert float(made.scores[row : row + 2].sum()) == pytest.approx(1)  # the word, and the full stop after it


def test_equal_scores_stay_equal_and_tokens_of_one_character_share_their_sum() -> None:
    spans = [Span(0, 1), Span(1, 2), Span(1, 2), Span(1, 2), Span(2, 9)]
    assert shared_out([0.5, 0.2, 0.1, 0.3, 0.1], spans, spans) == pytest.approx([0.5, 0.2, 0.2, 0.2, 0.1])
    apart = [Span(0, 1), Span(1, 4), Span(4, 4), Span(4, 11)]
    assert shared_out([0.1] * 4, apart, apart) == [0.1, 0.1, 0.0, 0.1]


def test_two_records_of_a_prompt_and_method_are_refused(tmp_path: Path) -> None:
    record = {"text": PROMPT, "tokens": PROMPT.split(), "scores": [1.0] * len(PROMPT.split())}
    assert len(external_methods(written(tmp_path, record, {**record, "method": "other"}))) == 2
    with pytest.raises(ValueError, match="has several records of given on 'The whistle"):
        external_methods(written(tmp_path, record, {**record, "target": " jar"}))


def test_scores_of_a_part_of_the_prompt_are_refused_unless_the_rest_is_not_evaluated(tmp_path: Path) -> None:
    beginning, _, rest = PROMPT.partition(" Claim:")
    words = beginning.split()
    file = written(tmp_path, {"text": beginning, "tokens": words, "scores": [1.0] * len(words), "prompt": "story"})
    with pytest.raises(ValueError, match=r"it has no score of 'Claim', ':', 'It'.*: give scores of the whole prompt"):
        scores_on(file)
    made = scores_on(file, replace(STORY, eligible=[Span(0, len(beginning))]))
    assert float(made.scores.sum()) == pytest.approx(len(words)) and rest


def test_our_own_scores_are_such_a_file(tmp_path: Path) -> None:
    scores = heta_lens.attribute_dataset(demo(), [STORY], "leave_one_out", out=tmp_path / "run", progress=False)
    for path in (tmp_path / "run", tmp_path / "run" / "run.sqlite"):
        made = scores_on(path)
        assert torch.equal(made.scores.float(), scores[0].scores) and made.method == "leave_one_out"


def test_others_prompts_and_targets_are_refused(tmp_path: Path) -> None:
    record = {"text": PROMPT, "tokens": PROMPT.split(), "scores": [1.0] * len(PROMPT.split())}
    other = Instance("other", "The whistle of Tom was placed in the", None)
    with pytest.raises(ValueError, match=r"given\.jsonl has no scores of given on 'other'"):
        scores_on(written(tmp_path, record), other)
    with pytest.raises(ValueError, match="explains ' jar' of 'story', and the prediction is ' cooker'"):
        scores_on(written(tmp_path, {**record, "target": " jar"}))
    with pytest.raises(ValueError, match=r"its text, .* is not the prompt's"):
        scores_on(written(tmp_path, {**record, "prompt": "other"}), other)
    (method,), prediction = external_methods(written(tmp_path, record)), ask(demo(), STORY)
    for asked in (ask(demo(), other), again(prediction)):
        with pytest.raises(ValueError, match="given exists as scores only"):
            method.ready(STORY, prediction)(asked)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a b"}, "line 1: it has no scores, but 'text'"),
        ({"scores": [1.0], "tokens": ["a"]}, "it has neither ids nor a text with its tokens"),
        ({"scores": [1.0], "tokens": ["a", "b"], "text": "a b"}, "it has 1 scores, and 2 tokens"),
        ({"scores": [1.0], "tokens": ["c"], "text": "a b"}, "its token 0, 'c', is not what the text goes on with"),
        ({"scores": [1.0], "tokens": ["a"], "text": "a", "start": [0]}, "it has start alone"),
        ({"scores": [1.0], "tokens": ["a"], "text": "a", "start": [0], "stop": [5]}, r"\(0, 5\) is no place"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_record_of_scores_is_refused(record: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        external_methods(written(tmp_path, record))
    with pytest.raises(FileNotFoundError, match="there is no file of scores"):
        external_methods(tmp_path / "none.jsonl")


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_inseq_and_captum_are_evaluated_beside_ours_from_one_command(tmp_path: Path) -> None:
    from captum.attr import FeatureAblation, LLMAttribution, TextTokenInput

    model, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO), AutoTokenizer.from_pretrained(DEMO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = LLMAttribution(FeatureAblation(model), tokenizer)
        words = TextTokenInput(PROMPT, tokenizer, skip_tokens=[tokenizer.bos_token_id])
        result = explainer.attribute(words, target=" cooker")
    write_scores(tmp_path / "captum.jsonl", [from_captum(result, PROMPT, method="captum ablation")])
    write_jsonl(tmp_path / "stories.jsonl", [STORY])
    files = ["--scores", str(INSEQ), "--scores", str(tmp_path / "captum.jsonl")]
    options = ["-m", "leave_one_out", "--metrics", "f1,aopc_del,soft_nc", "--out", str(tmp_path / "out")]
    done = run("evaluate", "jsonl", "--path", str(tmp_path / "stories.jsonl"), *files, *options)
    assert done.exit_code == 0, done.output
    records = {record.method: record for record in read_records(tmp_path / "out")}
    assert [*records] == ["captum ablation", "inseq input_x_gradient", "leave_one_out"]
    assert [record.reasons or record.failed for record in records.values()] == ["", "", ""]
    report = (tmp_path / "out" / "report.md").read_text()
    assert all(name in report for name in records)
    scores = heta_lens.load_scores(tmp_path / "out")["story", "captum ablation"].scores
    assert float(scores.sum()) == pytest.approx(float(result.seq_attr.sum()), rel=1e-5)


def test_a_method_of_a_file_has_signs_on_every_prompt_or_on_none(tmp_path: Path) -> None:
    rows = [{"prompt": name, "text": "a", "tokens": ["a"], "scores": [score]} for name, score in (("x", -1), ("y", 1))]
    both, above = (external_methods(written(tmp_path, *some)) for some in (rows, rows[1:]))
    assert both[0].signed and not above[0].signed
