"""Hard NC and NS against a loop."""

from typing import Any

import pytest

from helpers import zoo
from helpers.asking import plain_embeddings, plain_log_probs
from helpers.metric_inputs import MODEL, TARGET, N, prediction_of, some_scores
from heta_lens.metrics import hard, released
from heta_lens.metrics.scores import DISTANCES


@MODEL
def test_hard_nc_and_ns_are_what_a_loop_finds(build: Any) -> None:
    model = build()
    asked, scores = prediction_of(model), some_scores()
    embeddings, log_probs = plain_embeddings(model, zoo.prompt(model, N)), plain_log_probs(model, zoo.prompt(model, N))
    clean = log_probs(embeddings).detach()

    def apart(gone: list[int], of: str = "root") -> float:
        states = embeddings.clone()
        states[gone] = 0
        return float(DISTANCES[of](log_probs(states).detach()[None], clean, TARGET))

    order = scores.argsort(descending=True).tolist()
    found = hard(asked, scores, k=3)
    nothing = apart([*range(N)])
    assert found["nc"] == pytest.approx(apart(order[:3]) / nothing, rel=1e-6)
    assert found["ns"] == pytest.approx(max(0.0, nothing - apart(order[3:])) / nothing, rel=1e-6)
    assert hard(asked, scores, k=3, as_reagent=True)["nc"] == pytest.approx(
        apart(order[:3], "hellinger") / nothing, rel=1e-6
    )
    assert hard(asked, scores, share=0.4) == found  # 3.2, rounded down
    assert hard(asked, scores, k=N) == pytest.approx({"nc": 1, "ns": 1})
    assert hard(asked, scores, k=0) == pytest.approx({"nc": 0, "ns": 0}, abs=1e-9)
    kl = released(asked, scores, shares=(0.1, 0.5))
    assert kl["nc"] == pytest.approx((apart(order[:1], "kl") + apart(order[:4], "kl")) / 2, rel=1e-6)
    assert kl["ns"] == pytest.approx(-(apart(order[1:], "kl") + apart(order[4:], "kl")) / 2, rel=1e-6)
