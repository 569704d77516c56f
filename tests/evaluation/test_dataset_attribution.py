"""Many prompts are explained by several methods, with one cache each; interrupted runs resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from helpers import chats, zoo
from helpers.evaluating import demo
from heta_lens.data import suites
from heta_lens.data.instance import Instance
from heta_lens.evaluation.run_folder import read_records
from heta_lens.evaluation.saved_scores import SCORES
from heta_lens.model.adapter import ModelAdapter

METHODS = ["leave_one_out", "input_x_gradient"]


def explained(out: Path, count: int = 2, methods: Any = METHODS, **options: Any) -> heta_lens.KeptScores:
    instances = suites.suite("recall", limit=count)
    return heta_lens.attribute_dataset(demo(), instances, methods, out=out, progress=False, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_scores_are_those_of_attribute(tmp_path: Path) -> None:
    scores = explained(tmp_path)
    first = suites.suite("recall", limit=2)[0]
    assert len(scores) == 4
    tokens = heta_lens.model.tokenizer.encode(demo(), first.text)
    _, cache = demo().run_with_cache(tokens)
    expected = heta_lens.attribute(cache, first.answer, tokens=tokens, method="leave_one_out")
    assert torch.equal(scores[first.id, "leave_one_out"].scores, expected.scores)
    assert scores[first.id, "leave_one_out"].target == expected.target


@pytest.mark.slow
def test_one_cache_serves_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches, cache = [], ModelAdapter.cache
    monkeypatch.setattr(ModelAdapter, "cache", lambda *given: caches.append(1) or cache(*given))
    explained(tmp_path)
    assert len(caches) == 2


@pytest.mark.slow
def test_an_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = explained(tmp_path / "whole", 3)
    method, calls = heta_lens.METHODS["input_x_gradient"], []
    explain = method.explain

    def stopped(self: Any, *given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return explain(self, *given)

    monkeypatch.setattr(method, "explain", stopped)
    with pytest.raises(KeyboardInterrupt):
        explained(tmp_path / "cut", 3)
    assert len((tmp_path / "cut" / SCORES).read_text().splitlines()) == 3
    resumed = explained(tmp_path / "cut", 3)
    assert len((tmp_path / "cut" / SCORES).read_text().splitlines()) == 6
    assert resumed.names == whole.names
    assert all(torch.equal(one.scores, other.scores) for one, other in zip(resumed, whole, strict=True))


def test_methods_are_added(tmp_path: Path) -> None:
    explained(tmp_path, methods="random")
    scores = explained(tmp_path, methods=["random", "recency"])
    assert scores.methods == ("random", "recency") and len(scores) == 4


@pytest.mark.slow
def test_what_fails_is_recorded_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("no luck")

    with monkeypatch.context() as patched:
        patched.setattr(heta_lens.METHODS["leave_one_out"], "explain", failing)
        assert explained(tmp_path).methods == ("input_x_gradient",)
    assert sum(record.failed.startswith("RuntimeError: no luck") for record in read_records(tmp_path)) == 2
    assert explained(tmp_path).methods == ("input_x_gradient",)
    assert explained(tmp_path, retry_failed=True).methods == ("input_x_gradient", "leave_one_out")


@pytest.mark.slow
def test_other_prompts_are_refused(tmp_path: Path) -> None:
    explained(tmp_path)
    with pytest.raises(ValueError, match="holds an evaluation with other instances, texts"):
        explained(tmp_path, 3)
    with pytest.raises(ValueError, match=r"method='leave_one' .*did you mean 'leave_one_out'"):
        explained(tmp_path / "other", methods=["leave_one"])


def test_chats_have_roles(tmp_path: Path) -> None:
    model = chats.MODELS["bridge"]("qwen2.5")
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": chats.CHAT}) + "\n")
    scores = heta_lens.attribute_dataset(model, path, "random", out=tmp_path / "out", progress=False)
    expected = heta_lens.chat(model, chats.CHAT)
    assert torch.equal(scores[0].ids, expected.tokens[0].cpu())
    frame = scores.to_frame()
    assert {*frame["role"]} == {"template", *(message["role"] for message in chats.CHAT)}
    assert len(scores[0].by_message()) >= len(chats.CHAT)


@pytest.mark.slow
def test_an_evaluation_keeps_its_scores(tmp_path: Path) -> None:
    instances = suites.suite("recall", limit=2)
    entries = [heta_lens.evaluation.Entry.read("leave_one_out")]
    heta_lens.evaluation.evaluate(demo(), instances, entries, ["dsa"], tmp_path, progress=False)
    assert [*heta_lens.load_scores(tmp_path).names] == [(each.id, "leave_one_out") for each in instances]


def test_another_model_is_refused(tmp_path: Path) -> None:
    instances = [Instance("a", "The whistle of Tom was placed in the", None)]
    heta_lens.attribute_dataset(demo(), instances, "recency", out=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"holds an evaluation with other .*model"):
        heta_lens.attribute_dataset(zoo.bridge("gpt2"), instances, "recency", out=tmp_path, progress=False)


@pytest.mark.slow
def test_lost_scores_are_computed_again(tmp_path: Path) -> None:
    whole = explained(tmp_path)
    (tmp_path / SCORES).unlink()
    again = explained(tmp_path)
    assert {*again.names} == {*whole.names}
    assert torch.equal(again[whole.names[0]].scores, whole[0].scores)


@pytest.mark.slow
def test_scores_come_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    texts = [f"The whistle of {name} was placed in the" for name in ["Tom", "Enzo"] * 6]
    scores = heta_lens.attribute_dataset(demo(), texts, ["recency", "random"], out=tmp_path, progress=False)
    assert scores.prompts == tuple(f"prompt-{number}" for number in range(12))
    assert scores.methods == ("recency", "random") and scores.names[:2] == (
        ("prompt-0", "recency"),
        ("prompt-0", "random"),
    )
