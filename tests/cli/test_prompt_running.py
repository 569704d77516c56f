"""A model reads a prompt, and goes on writing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.evaluating import demo
from heta_lens.cli.questions import Question, Span, read_by

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"


def test_it_writes_what_is_most_likely_each_time() -> None:
    model = demo()
    read = read_by(model, TEXT, Question(generate=4))
    ids = model.to_tokens(TEXT)
    for _ in range(4):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    assert read.tokens.tolist() == ids[:, : read.tokens.shape[1]].tolist()
    assert read.span == Span(model.to_tokens(TEXT).shape[1])
    assert read.written == model.tokenizer.decode(read.tokens[0, model.to_tokens(TEXT).shape[1] :])


def test_it_stops_where_a_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_by(demo(), TEXT, Question(generate=3)).tokens
    monkeypatch.setattr(type(demo().tokenizer), "eos_token_id", int(whole[0, -1]), raising=False)
    assert read_by(demo(), TEXT, Question(generate=3)).tokens.tolist() == whole[:, :-1].tolist()


def test_what_is_asked_of_a_prompt_is_where_its_answer_is() -> None:
    question = Question(span=Span(-3, -1))
    read = read_by(demo(), TEXT, question)
    assert read.span == question.span and read.written is None


def test_a_text_that_ends_at_once_has_nothing_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heta_lens.prediction.generation.greedy", lambda *_: torch.tensor([], dtype=torch.int64))
    with pytest.raises(ValueError, match="--generate 2: the model ends the text at once"):
        read_by(demo(), TEXT, Question(generate=2))


def test_more_than_the_model_reads_is_refused() -> None:
    most: Any = demo().cfg.n_ctx
    with pytest.raises(ValueError, match=f"--generate {most} makes {most + 30} tokens of the prompt's 30"):
        read_by(demo(), TEXT, replace(Question(), generate=most))
