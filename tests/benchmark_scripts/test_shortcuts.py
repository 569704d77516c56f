"""AttriBoT's shortcuts beside the exact scores, on a story."""

import pytest

import heta_lens
from benchmarks import reasoning_model, shortcuts
from heta_lens.data.recall import stories


@pytest.mark.slow
def test_every_way_scores_every_sentence() -> None:
    story = next(stories("test", facts=4, filler=6))
    found = shortcuts.outcome(heta_lens.load_demo_model(), reasoning_model.load(), story)
    assert {*found["ways"]} == {*shortcuts.WAYS}
    exact = found["ways"]["exact"]["scores"]
    assert all(len(one["scores"]) == len(exact) for one in found["ways"].values())
    for one in found["alone"].values():
        assert one["scores"] == pytest.approx(exact, abs=1e-3)
    assert found["ways"]["the best 1 of paragraphs of three"]["forwards"] < len(exact)
