"""SEA-CoT against explanations written and read plainly."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from helpers import zoo
from helpers.asking import plain, plain_draw, predict, relative
from heta_lens.methods import sea_cot
from heta_lens.methods.sea_cot import SeaCot, content_words
from heta_lens.model.batching import Batches
from heta_lens.prediction.generation import Writer, sample
from heta_lens.prediction.prediction import Prediction

pytestmark = [pytest.mark.both_lines, pytest.mark.usefixtures("few_words")]
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
SHORT: dict[str, Any] = {"explanations": 12, "length": 6, "temperature": 3, "top_p": 1}
"""For models of 64 positions that know no words and repeat few."""


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode([token for token in ids if token not in tokenizer.all_special_ids])


def plain_entailment(model: Any, question: list[int]) -> float:
    """The odds of Yes to No, each spelled out token by token."""
    likely = []
    for answer in (" Yes", " No"):
        ids, total = list(question), 0.0
        for token in model.tokenizer.encode(answer, add_special_tokens=False):
            total += float(plain(model, ids)[token])
            ids.append(token)
        likely.append(np.exp(total))
    return likely[0] / (likely[0] + likely[1])


def plain_sea_cot(asked: Prediction, options: dict[str, Any]) -> dict[str, Any]:
    """Explanation by explanation, and character by character of the context."""
    model, ids, target = asked.adapter.model, asked.ids.tolist(), asked.target
    tokenizer = model.tokenizer
    encode = partial(tokenizer.encode, add_special_tokens=False)
    written, kept, merits = [], [], []
    for row in range(options["explanations"]):
        so_far = [*ids, *encode(".")]
        start = len(so_far)
        for draw in np.random.default_rng([0, row, *so_far]).random(options["length"]):
            token = plain_draw(plain(model, so_far), draw, options["temperature"], options["top_p"])
            if token == tokenizer.eos_token_id:
                break
            so_far.append(token)
        written.append(so_far[start:])
    think, conclude = encode("."), encode(" is")
    hits = [int(plain(model, [*ids, *think, *each, *conclude]).argmax()) == target for each in written]
    for each, hit in zip(written, hits, strict=True):
        if not hit and any(hits):
            continue
        question = [*ids[:1], *each, *encode(" in "), *ids[1:], target, *encode("?")]
        said, claimed = (content_words(text_of(tokenizer, some)) for some in (each, [*ids, target]))
        shared = len(said & claimed) / len(said | claimed) if said | claimed else 0
        kept.append(said)
        merits.append(plain_entailment(model, question) + shared)
    weights = np.exp(merits) / np.exp(merits).sum()
    scores = np.zeros(len(ids))
    words, at = [], -1  # the word of each token: one starts at a token that starts with a space
    for place, token in enumerate(ids[1:], 1):
        piece = tokenizer.decode([token])
        if piece.startswith(" ") or at < 0:
            words.append("")
            at += 1
        words[-1] += piece
        scores[place] = at
    by_word = [sum(w for w, said in zip(weights, kept, strict=True) if content_words(word) & said) for word in words]
    return {
        "scores": torch.tensor([0.0, *(by_word[int(at)] for at in scores[1:])], dtype=torch.float64),
        "weights": torch.from_numpy(weights),
        "hit_rate": sum(hits) / len(hits),
    }


@pytest.mark.parametrize("build", zoo.models("-llama$|bridge-gptj$"))
def test_sea_cot_is_the_weight_of_the_explanations_that_mention_a_word(build: Callable[..., Any]) -> None:
    model = build()
    tokenizer = model.tokenizer
    words = "The cat dog tower Mary Rome Paris store France Italy capital drink"
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(words, add_special_tokens=False)]])
    assert {"cat", "tower"} < content_words(tokenizer.decode(ids[0].tolist()))
    asked = predict(model, ids)
    options = SHORT | {"temperature": 30}
    found, expected = SeaCot(**options)(asked), plain_sea_cot(asked, options)
    assert relative(found.diagnostics["weights"], expected["weights"]) < 1e-5
    assert expected["scores"].max() > 0
    assert relative(found.scores, expected["scores"]) < 1e-5
    assert found.diagnostics["hit_rate"] == expected["hit_rate"]
    assert found.method == "sea_cot_adapted" and not found.signed


@ONE_EACH
def test_sea_cot_keeps_the_explanations_that_lead_to_the_target(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    asked = predict(model, ids)
    written = sample(
        Writer.after(asked, Batches(8), more=model.tokenizer.encode(".", add_special_tokens=False)),
        12, 6, temperature=3, top_p=1, seed=0, ends=[model.tokenizer.eos_token_id],
    )  # fmt: skip
    think = model.tokenizer.encode(".", add_special_tokens=False)
    ends = [int(plain(model, [*ids[0].tolist(), *think, *one.tolist()]).argmax()) for one in written]
    often, never = max(set(ends), key=ends.count), next(token for token in range(99) if token not in ends)
    monkeypatch.setattr(sea_cot, "CONCLUDE", "")
    hit, missed = (SeaCot(**SHORT)(predict(model, ids, target)).diagnostics for target in (often, never))
    assert hit["hit_rate"] == ends.count(often) / 12 and len(hit["weights"]) == ends.count(often) < 12
    assert missed["hit_rate"] == 0 and len(missed["weights"]) == 12
    assert hit["forwards"] <= SeaCot(**SHORT).work(asked).forwards


@ONE_EACH
def test_sea_cot_can_ask_somebody_else_what_entails_the_claim(build: Callable[..., Any]) -> None:
    model, asked_of = build(), []

    def judge(premise: str, hypothesis: str) -> float:
        asked_of.append((premise, hypothesis))
        return float("e" in premise)

    asked = predict(model, zoo.prompt(model, 8), 30)
    found = SeaCot(**SHORT | {"entail": judge})(asked)
    texts = found.diagnostics["explanations"]
    claimed = text_of(model.tokenizer, [*asked.ids.tolist(), 30])
    assert asked_of == [(text, claimed) for text in texts]
    assert found.diagnostics["entailed"].tolist() == [float("e" in text) for text in texts]
    assert len(set(found.diagnostics["entailed"].tolist())) == 2
    assert "judge" in str(found.options["entail"])


@ONE_EACH
def test_what_sea_cot_refuses(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    asked = predict(model, ids, 30)
    with pytest.raises(ValueError, match=r"'sea_cot' takes 117 positions, .*: make length=100 smaller"):
        SeaCot()(asked)
    for wrong in (-0.5, 70, float("nan")):
        with pytest.raises(ValueError, match=rf"entail\(explanation, claim\)={float(wrong)} must be at "):
            SeaCot(**SHORT | {"entail": lambda *_, wrong=wrong: wrong})(asked)
    monkeypatch.setattr("heta_lens.methods.sea_cot.YES", " No")
    with pytest.raises(ValueError, match="' No' and ' No' alike"):
        SeaCot(**SHORT)(asked)
    monkeypatch.setattr(model, "tokenizer", None)
    with pytest.raises(ValueError, match="'sea_cot' reads and writes text, and the model has no tokenizer"):
        SeaCot(**SHORT)(asked)
