"""ARC-JSD and AttriBoT against plain runs without a source, and sources of texts and chats."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import chats, zoo
from helpers.ablations import TARGET, close, found, ids_of
from helpers.asking import cache_of, plain_embeddings, plain_log_probs, predict, relative
from heta_lens import chat
from heta_lens.methods.leave_one_out import ArcJsd, AttriBot
from heta_lens.methods.surrogates import ContextCite
from heta_lens.prediction.chat import ChatPrompt
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import log_softmax

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
BUILD = dict(zoo.KINDS)


@pytest.mark.parametrize("name", NAMES)
def test_each_sentence_is_left_out_of_the_ids(name: str) -> None:
    model, ids = BUILD[name](), ids_of()
    some = found(model, ArcJsd(), ids)
    clean = model(ids)[0, -1].detach().double().log_softmax(-1)
    for score, places in zip(some.diagnostics["source_scores"], some.diagnostics["source_positions"], strict=True):
        left = [k for k in range(ids.shape[1]) if k not in places]
        moved = model(ids[:, left])[0, -1].detach().double().log_softmax(-1)
        middle = (clean.exp() + moved.exp()).log() - math.log(2)
        expected = sum((one.exp() * (one - middle)).sum() for one in (clean, moved)) / 2
        assert score == pytest.approx(float(expected), rel=1e-3, abs=1e-9)
        assert some.scores[list(places)].tolist() == pytest.approx([score / len(places)] * len(places))
    assert some.scores[0] == 0 and not some.signed
    assert all(0 <= score <= math.log(2) for score in some.diagnostics["source_scores"])


MODEL = pytest.mark.parametrize("name", NAMES)


def log_prob(model: Any, ids: torch.Tensor, left: list[int], target: int = TARGET) -> float:
    with torch.no_grad():
        return float(model(ids[:, left])[0, -1].double().log_softmax(-1)[target])


def others(length: int, *gone: Any) -> list[int]:
    return [place for place in range(length) if not any(place in places for places in gone)]


@MODEL
@pytest.mark.parametrize("ablate", ["remove", "mask"])
def test_where_nothing_is_cut_shortcuts_are_exact(name: str, ablate: Any) -> None:
    model, ids = BUILD[name](), ids_of()
    exact = found(model, AttriBot(ablate=ablate), ids).scores
    for cut in (AttriBot(ablate=ablate, prune_to=99), AttriBot(ablate=ablate, prune_to=99, proxy=model)):
        assert relative(found(model, cut, ids).scores, exact) < 1e-4
    assert relative(found(model, AttriBot(ablate=ablate, proxy=model), ids).scores, exact) < 1e-4


@pytest.mark.parametrize(("ends", "parts"), [(["? "], [2, 2]), (["! "], [3, 1]), ([". ", "? ", "! "], [1] * 4)])
def test_sentences_of_the_best_paragraph_are_left_out_of_it_alone(
    ends: list[str], parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    text, spans = predict(model, ids, TARGET).located
    for end in ends:  # a line end, which these tokens cannot write
        text = text.replace(end, f"{end[0]}\n")
    monkeypatch.setattr(Prediction, "located", (text, spans))
    n, every = ids.shape[1], found(model, AttriBot(), ids).diagnostics["source_positions"]
    owner = [k for k, size in enumerate(parts) for _ in range(size)]
    paragraphs = [
        [p for places, own in zip(every, owner, strict=True) if own == k for p in places] for k in range(len(parts))
    ]
    drops = [log_prob(model, ids, [*range(n)]) - log_prob(model, ids, others(n, part)) for part in paragraphs]
    best = max(range(len(parts)), key=lambda k: drops[k])
    gone = [place for k, part in enumerate(paragraphs) if k != best for place in part]
    whole = log_prob(model, ids, others(n, gone))
    expected = [
        whole - log_prob(model, ids, others(n, gone, places)) if own == best else 0.0
        for places, own in zip(every, owner, strict=True)
    ]
    some = found(model, AttriBot(prune_to=1), ids)
    close("bridge-gpt2", some.diagnostics["source_scores"], expected, 20)
    assert some.diagnostics["measured"] == [own == best for own in owner]
    assert some.diagnostics["forwards"] == len(parts) + 1 + parts[best]
    assert AttriBot(prune_to=1).work(predict(model, ids, TARGET)).forwards == len(parts) + 1 + max(parts)


def test_a_proxy_chooses_and_the_model_measures() -> None:
    model, proxy, ids = zoo.bridge("gpt2"), zoo.bridge("llama"), ids_of()
    n, by_proxy = ids.shape[1], found(proxy, AttriBot(), ids).diagnostics
    places = by_proxy["source_positions"]
    alone = found(model, AttriBot(proxy=proxy), ids)
    assert alone.diagnostics["source_scores"] == pytest.approx(by_proxy["source_scores"], rel=1e-5)
    two = sorted(range(4), key=lambda k: -by_proxy["source_scores"][k])[:2]
    gone = [place for k in range(4) if k not in two for place in places[k]]
    whole = log_prob(model, ids, others(n, gone))
    expected = [whole - log_prob(model, ids, others(n, gone, places[k])) if k in two else 0.0 for k in range(4)]
    some = found(model, AttriBot(proxy=proxy, prune_to=2), ids)
    close("bridge-gpt2", some.diagnostics["source_scores"], expected, 20)
    assert some.diagnostics["forwards"] == 4 + 1 + 2


def test_a_proxy_reads_an_activation_at_the_same_place() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    back, forth = (heta_lens.activation("blocks.1.hook_resid_post", index=2, at=at) for at in (-2, ids.shape[1] - 2))
    method = AttriBot(source="token", ablate="mask", proxy=model)
    one, other = (method(predict(model, ids, target)) for target in (back, forth))
    assert torch.equal(one.scores, other.scores) and one.scores.any()


def test_a_proxy_has_the_same_tokens() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=r"the proxy has other tokens than this model \(375 and \d+\)"):
        AttriBot(proxy=heta_lens.load_demo_model()).check(predict(model, ids_of(), TARGET))
    with pytest.raises(TypeError, match="is not a model: load it first"):
        AttriBot(proxy=type(model))


SCATTERED = np.array([[p in part for p in range(8)] for part in ((1, 2), (0,), (3, 6), (5, 6, 7), (2, 3, 4, 5, 6, 7))])


def rows_without_each(prediction: Prediction, ablate: Any) -> Tensor:
    rows: list[Tensor] = []

    def read(logits: Tensor) -> Tensor:
        rows.extend(log_softmax(logits))
        return torch.arange(len(rows) - len(logits), len(rows)).double()

    with prediction.running():
        order = ArcJsd(ablate=ablate).without_each(prediction, SCATTERED, read)
    return torch.stack(rows)[order.astype(int)]


SHORT = pytest.mark.parametrize("short", [0, 128])


@SHORT
@pytest.mark.parametrize("build", zoo.models("."))
def test_what_is_removed_is_removed_from_the_ids(
    build: Callable[..., Any], short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heta_lens.methods.sources.SHORT", short)
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "remove")
    with torch.no_grad():
        plain = [model(ids[:, ~torch.from_numpy(gone)])[0, -1].double().log_softmax(-1) for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


@SHORT
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_what_is_masked_keeps_its_place(build: Callable[..., Any], short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heta_lens.methods.sources.SHORT", short)
    model = build()
    ids = zoo.prompt(model, 8)
    rows = rows_without_each(predict(model, ids, TARGET), "mask")
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    plain = [log_probs(torch.where(torch.from_numpy(gone)[:, None], 0, embeddings)).detach() for gone in SCATTERED]
    assert relative(rows, torch.stack(plain)) < 1e-5


def of_chat(made: ChatPrompt, model: Any) -> Prediction:
    return Prediction.from_cache(cache_of(model, made.tokens), tokens=made)


@pytest.mark.thorough
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
    tokens = AttriBot(source="token").sources(asked)
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


@pytest.mark.parametrize("method", [ArcJsd, AttriBot, ContextCite])
def test_nothing_is_left_of_a_text_without_tokenizer(method: Any) -> None:
    model = zoo.NEW["gpt2"]()
    model.tokenizer = None
    with pytest.raises(ValueError, match="no token is left, and this model has none for an empty text"):
        method()(predict(model, ids_of(), TARGET))
    assert method(ablate="mask")(predict(model, ids_of(), TARGET)).scores.abs().sum() > 0
