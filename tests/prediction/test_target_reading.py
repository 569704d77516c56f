"""What is read of a target in logits, against sums over plain numbers."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict

N, TARGET, OTHER = 7, 7, 9
SET = frozenset((TARGET, OTHER))


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
@pytest.mark.parametrize("scale", ["log_prob", "prob", "logit", "log_odds"])
def test_a_set_reads_as_computed_by_hand(build: Callable[..., Any], scale: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    with torch.no_grad():
        logits = model(ids)[0, -1].tolist()
    total = math.fsum(map(math.exp, logits))

    def by_hand(tokens: Iterable[int]) -> float:
        mass = math.fsum(math.exp(logits[token]) for token in tokens)
        p = mass / total
        return {
            "log_prob": math.log(p),
            "prob": p,
            "logit": math.log(mass),
            "log_odds": math.log(mass)
            - math.log(math.fsum(math.exp(z) for t, z in enumerate(logits) if t not in tokens)),
        }[scale]

    prediction = predict(model, ids, SET)
    assert float(prediction.read(torch.tensor(logits, dtype=torch.float64), scale)) == pytest.approx(
        by_hand(SET), rel=1e-12
    )
    against = predict(model, ids, (SET, {20, 30}))
    expected = by_hand(SET) - by_hand({20, 30})
    assert float(against.read(torch.tensor(logits, dtype=torch.float64), scale)) == pytest.approx(expected, rel=1e-10)
    if scale == "log_prob":
        assert float(prediction.value) == pytest.approx(by_hand(SET), rel=1e-6)
        assert prediction.objective_from(0)(prediction.embeddings).item() == pytest.approx(by_hand(SET), rel=1e-6)


def test_an_almost_certain_set_keeps_what_is_left_of_it() -> None:
    """In float32, ``1 - p`` of 1e-9 is lost from log-probabilities that are rounded before they are added."""
    model = zoo.bridge("gpt2", torch.float32)
    prediction = predict(model, zoo.prompt(model, N), {0, 1})
    logits = torch.full((5,), -20.0)
    logits[:2] = torch.tensor([0.1, -0.1])
    left = -float(prediction.objective(logits))
    assert left == pytest.approx(3 * math.exp(-20) / (math.exp(0.1) + math.exp(-0.1)), rel=1e-6)


def test_g_of_a_token_takes_log_probabilities_that_are_known_and_of_others_the_logits() -> None:
    model = zoo.bridge("gpt2")
    logits, wrong = torch.randn(2, 5), torch.zeros(2, 5)
    ids = zoo.prompt(model, N)
    assert predict(model, ids, 3).objective(logits, wrong).tolist() == [0, 0]
    assert predict(model, ids, (3, 4)).objective(logits, wrong).tolist() == [0, 0]
    torch.testing.assert_close(predict(model, ids, 3).objective(logits), logits.log_softmax(-1)[:, 3])
    for target in ({3, 4}, lambda row: row[3:].logsumexp(-1) - row.logsumexp(-1)):
        given = predict(model, ids, target).objective(logits, wrong)
        torch.testing.assert_close(given, logits.softmax(-1)[:, 3:].sum(-1).log())


def test_clean_logits_are_run_for_where_they_were_not_kept() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)

    def third(logits: Tensor) -> Tensor:
        return logits[3]

    kept, run = predict(model, ids, third), predict(model, ids, 5)
    assert [len(prediction.prompt.logits) for prediction in (kept, run)] == [1, 0]
    torch.testing.assert_close(kept.logits, run.logits)
    torch.testing.assert_close(kept.value, model(ids)[0, -1, 3].detach())


def test_a_target_has_a_text_and_words() -> None:
    model = zoo.bridge("gpt2")
    ids, text = zoo.prompt(model, N), [model.tokenizer.decode([token]) for token in (7, 9, 20)]
    pair = predict(model, ids, (SET, 20))
    assert pair.target_text == (f"any of {text[0]!r}, {text[1]!r}", text[2])
    assert pair.target_words == f"any of {text[0]!r}, {text[1]!r} rather than {text[2]!r}"
    assert repr(pair) == f"Prediction of {pair.target_words} after {N} tokens, by a TransformerBridge"
