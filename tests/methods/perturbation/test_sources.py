"""What is predicted without each source, against plain runs of the ids, or of the embeddings, that are left."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import chats, zoo
from helpers.ablations import TARGET, found, ids_of
from helpers.asking import cache_of, plain_embeddings, plain_log_probs, predict, relative
from heta_lens import chat
from heta_lens._util.work import Work
from heta_lens.methods.attribot import ArcJsd, AttriBot
from heta_lens.methods.surrogates import ContextCite
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

SCATTERED = np.array([[p in part for p in range(8)] for part in ((1, 2), (0,), (3, 6), (5, 6, 7), (2, 3, 4, 5, 6, 7))])


def rows_without_each(prediction: Prediction, ablate: Any, batch: Any) -> Tensor:
    rows: list[Tensor] = []

    def read(logits: Tensor) -> Tensor:
        rows.extend(log_softmax(logits))
        return torch.arange(len(rows) - len(logits), len(rows)).double()

    with prediction.running():
        order = ArcJsd(ablate=ablate, batch=batch).without_each(prediction, SCATTERED, read, Work())
    return torch.stack(rows)[order.astype(int)]


BATCH = pytest.mark.parametrize("batch", [1, "auto"])


@BATCH
@pytest.mark.parametrize("build", zoo.models("."))
def test_what_is_removed_is_removed_from_the_ids(build: Callable[..., Any], batch: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "remove", batch)
    with torch.no_grad():
        plain = [model(ids[:, ~torch.from_numpy(gone)])[0, -1].double().log_softmax(-1) for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


@BATCH
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_what_is_masked_keeps_its_place(build: Callable[..., Any], batch: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "mask", batch)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    plain = [log_probs(torch.where(torch.from_numpy(gone)[:, None], 0, embeddings)).detach() for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


def test_a_run_begins_where_its_source_did(forwards: Callable[[Any], list[Any]]) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    prediction = predict(model, ids, TARGET)
    _ = prediction.prompt.kept
    runs = forwards(model)
    places = ArcJsd(batch=1)(prediction).diagnostics["source_positions"]
    read = ids.shape[1]
    assert [run[0].shape[1] for run in runs] == [read - place[0] - len(place) for place in places[:-1]] + [
        places[-1][0]
    ]


def test_the_only_source_leaves_a_token_that_begins_the_text() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of("The cat", bos=False)
    some = found(model, ArcJsd(), ids)
    with torch.no_grad():
        begun = model(torch.tensor([[zoo.tokenizer().bos_token_id]]))[0, -1].log_softmax(-1)
        clean = model(ids)[0, -1].log_softmax(-1)
    middle = (begun.exp() + clean.exp()).log() - np.log(2)
    expected = sum((one.exp() * (one - middle)).sum() for one in (begun, clean)) / 2
    assert some.diagnostics["source_scores"] == pytest.approx([float(expected)], rel=1e-4)


def of_chat(made: ChatPrompt, model: Any) -> Prediction:
    return Prediction.from_cache(cache_of(model, made.tokens), tokens=made)


@pytest.mark.parametrize("name", chats.FAMILIES)
@pytest.mark.parametrize("method", [AttriBot(), ArcJsd(), ContextCite(samples=4)], ids=lambda method: method.name)
def test_sentences_of_a_chat_are_those_of_its_messages(name: str, method: Any) -> None:
    """The template stays whole, and so no header is a sentence."""
    model = chats.bridge(name)
    said = ["Hello. Where is the cat?", "On the mat. The mat", "And the dog"]
    turns = [{"role": role, "content": text} for role, text in zip(["user", "assistant", "user"], said, strict=True)]
    made = chat(model, turns)
    asked = of_chat(made, model)
    found = method(asked)
    assert not found.scores[made.template].any()
    places = found.diagnostics["source_positions"]
    sentences = ["Hello.", "Where is the cat?", "On the mat.", "The mat", "And the dog"]
    assert found.diagnostics["sources"] == sentences
    assert sorted(place for own in places for place in own) == (~made.template).nonzero()[:, 0].tolist()
    tokens = AttriBot(source="token").sources(asked)[1]
    assert tokens.any(0).tolist() == (~made.template).tolist()


def test_the_sentence_that_is_being_written_is_no_source() -> None:
    model = zoo.bridge("gpt2")
    for text, sources in {
        "The cat sat. The dog": ["The cat sat."],
        "The cat sat. Is the dog in Rome? No, the": ["The cat sat.", "Is the dog in Rome?"],
        "The cat sat. The dog.": ["The cat sat.", "The dog."],
        "The cat": ["The cat"],  # there is no other
    }.items():
        for bos in (True, False):
            ids = ids_of(text, bos=bos)
            some = found(model, ArcJsd(), ids)
            assert some.diagnostics["sources"] == sources
            assert not some.scores[max(map(max, some.diagnostics["source_positions"])) + 1 :].any()
    every = found(model, ArcJsd(query=((0, 1),)), ids_of("The cat sat. The dog"))
    assert every.diagnostics["sources"] == ["The cat sat.", "The dog"]
    single = found(model, ArcJsd(source="token"), ids_of("The cat sat. The dog"))
    assert len(single.diagnostics["sources"]) == len(single) - 1


def test_an_answer_that_goes_on_is_no_source_of_a_chat() -> None:
    model = chats.bridge()
    made = chat(model, [{"role": "user", "content": "Where is the cat"}])
    written = chats.tokenizer("qwen2.5").encode("It is there. The cat", add_special_tokens=False)
    assert AttriBot()(of_chat(made.followed_by(written), model)).diagnostics["sources"] == [
        "Where is the cat",
        "It is there.",
    ]
