"""Perturbation curves against one run after another, and the areas of worked examples."""

from typing import Any

import pytest

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs
from helpers.evaluating import MODEL, TARGET, N, prediction_of, some_scores
from heta_lens.metrics import Curve, abpc, aopc, area, curve


def test_the_worked_example_of_curves() -> None:
    thirds = (0.0, 1 / 3, 2 / 3, 1.0)
    morf, lerf = Curve(thirds, (0.9, 0.5, 0.3, 0.1)), Curve(thirds, (0.9, 0.85, 0.7, 0.1))
    assert aopc(morf) == pytest.approx(0.45)
    assert (area(morf), area(lerf)) == pytest.approx((0.433333, 0.683333), abs=1e-6)
    assert abpc(morf, lerf) == pytest.approx(0.25) == area(morf, "drop") - area(lerf, "drop")
    assert aopc(Curve(thirds, (0.1, 0.6, 0.8, 0.9)), insert=True) == pytest.approx(0.5)


@MODEL
@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_a_curve_is_one_run_after_another(build: Any, order: Any, insert: bool) -> None:
    model = build()
    asked, scores = prediction_of(model), some_scores()
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    places = [at for at in scores.argsort(descending=order == "morf").tolist() if at]  # the first begins the text
    expected = []
    for count in range(N):
        gone = places[count:] if insert else places[:count]
        states = embeddings.clone()
        states[gone] = 0
        expected.append(float(log_probs(states).detach()[TARGET].exp()))
    found = curve(asked, scores, order=order, insert=insert, steps=[count / 7 for count in range(N)])
    assert found.values == pytest.approx(expected, rel=1e-6)
    tenths = curve(asked, scores, order=order, insert=insert)
    assert tenths.values == pytest.approx([expected[int(share * 7 / 10)] for share in range(11)], rel=1e-6)
