"""Retraining without tokens, and with nothing but them."""

import numpy as np
import pytest
import torch

from heta_lens.metrics import retrained
from heta_lens.metrics.tasks import retrained_without


def sorted_texts(count: int = 400) -> tuple[list[list[int]], list[int]]:
    """Of 10 words; one, anywhere, tells which of two kinds a text is of."""
    generator = np.random.default_rng(0)
    texts, labels = generator.integers(10, 60, (count, 10)), generator.integers(0, 2, count)
    texts[np.arange(count), generator.integers(0, 10, count)] = labels
    return texts.tolist(), labels.tolist()


@pytest.mark.slow
def test_without_the_word_that_tells_nothing_can_be_learned() -> None:
    texts, labels = sorted_texts()
    good = [torch.tensor([float(word < 2) for word in text]) for text in texts]
    found = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert found.removed.shape == (3, 2) and (found.removed < 0.65).all() and (found.kept > 0.99).all()
    assert (found.whole > 0.95).all() and (found.nothing < 0.65).all()
    bad = retrained(texts, labels, [-one for one in good], shares=(0.1, 0.5))
    assert (bad.removed > 0.95).all() and (bad.kept < 0.65).all()
    assert (abs(bad.removed_by_chance[:, 1] - 0.75) < 0.12).all() and (
        abs(bad.kept_by_chance[:, 1] - 0.75) < 0.12
    ).all()
    spared = retrained(texts, labels, good, shares=(1.0,), candidates=[[*range(5)]] * len(texts))
    assert (abs(spared.removed - 0.75) < 0.12).all()  # half of the words that tell lie elsewhere
    again = retrained(texts, labels, good, shares=(0.1, 0.5))
    assert all(np.array_equal(getattr(again, name), getattr(found, name)) for name in vars(found))


def test_counts_leave_out_what_is_gone() -> None:
    assert retrained_without([[3, 1, 3], [0]], [[0], []]).tolist() == [[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]]


def test_what_cannot_be_learned_is_refused() -> None:
    texts, labels = sorted_texts(4)
    scores = [torch.ones(10)] * 4
    with pytest.raises(ValueError, match="4 texts, 3 labels and 4 scores"):
        retrained(texts, labels[:3], scores)
    with pytest.raises(ValueError, match=r"shares=\(2.0,\) must be between 0 and 1"):
        retrained(texts, labels, scores, shares=(2.0,))
    with pytest.raises(ValueError, match="have one label"):
        retrained(texts, [1] * 4, scores)
